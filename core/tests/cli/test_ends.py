"""How a command ends that is stopped from outside: Ctrl-C, a closed pipe, a full disk."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time

import pytest

# Goes on for ever: old tokens are dropped, and the two that would end it are forbidden.
FOREVER = ("-n", "-1", "--temp", "0", "--logit-bias", "1=-inf", "--logit-bias", "2=-inf")


def test_ctrl_c_stops_the_text(spawn, story):
    """What there is stays, the figures are told, the exit code is 130."""
    process = spawn("run", story, "Once", "--keep", "4", *FOREVER)
    first = process.stdout.read(1)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert (first + out).endswith(b"\n")
    assert b", cancelled, seed " in err
    assert b"Traceback" not in err


def test_ctrl_c_twice(spawn, story):
    """Two of them do no harm."""
    process = spawn("run", story, "Once", "--keep", "4", *FOREVER)
    process.stdout.read(1)

    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert b"Traceback" not in err


def test_ctrl_c_while_a_text_is_read(spawn, story):
    """Ctrl-C before the text has come in."""
    process = spawn("run", story)
    process.stdin.write(b"x" * (1 << 20))  # more than a pipe holds: now it is being read
    process.stdin.flush()
    time.sleep(0.5)  # a signal just before a read is not heard in it

    process.send_signal(signal.SIGINT)

    assert process.wait(20) == 130
    assert process.stderr.read() == b""


def test_closed_pipe(spawn, story):
    """`| head -1`: the end is quiet."""
    process = spawn("run", story, "Once", "--keep", "4", *FOREVER)
    process.stdout.read(1)

    process.stdout.close()

    assert process.wait(20) == 141
    assert process.stderr.read() == b""


def test_closed_pipe_of_a_table(spawn, story):
    """A command that writes everything at its end does not complain either."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        process = spawn("inspect", story, "--tensors", stdout=pipe)
        err = process.communicate(timeout=20)[1]

    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize("words", [("run", "{}", "Once", "-n", "3"), ("inspect", "{}")])
def test_full_disk(spawn, story, tmp_path, words):
    """Output that cannot be written is one error."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with open(tmp_path / "out", "wb") as out:
        words = [word.format(story) for word in words]
        process = spawn(*words, stdout=out, preexec_fn=full)
        err = process.communicate(timeout=20)[1].decode()

    assert process.returncode == 2
    assert f"umbel: error: {os.strerror(errno.EFBIG)}\n" in err
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_nothing_is_open(spawn, story):
    """Without stdin, stdout and stderr a command still works."""

    def close() -> None:
        for stream in range(3):
            os.close(stream)

    process = spawn("run", story, "Once", "-n", "3", preexec_fn=close)

    assert process.wait(20) == 0

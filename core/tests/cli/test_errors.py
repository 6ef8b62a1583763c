"""Every bad value is one error with exit code 2 that names the option; no traceback."""

from __future__ import annotations

import errno

import pytest
from umbel import cli
from umbel.errors import OptionError

RUN = """
--ctx=0 --ctx=-5 --ctx=x --ctx=1e9 --ctx=99999999999999999999 --ctx= --ubatch=0 --ubatch=x
--threads=-1 --threads=x -t=1.5 --kv=f64 --kv= -n=-2 -n=x -n=1.5 --temp=-1 --temp=x --temp=nan
--temp=inf --top-k=-2 --top-k=1.5 --top-p=1.1 --top-p=-0.1 --top-p=nan --min-p=2 --typical=-1
--typical=x --seed=-1 --seed=x --seed=9999999999999999999999 --xtc-probability=2
--xtc-threshold=-1 --dry-multiplier=-1 --dry-base=0 --dry-allowed-length=-1 --dry-last-n=-2
--repeat-penalty=0 --frequency-penalty=inf --presence-penalty=x --penalty-last-n=-2
--repeat-last-n=x --mirostat=1 --mirostat-tau=-1 --mirostat-eta=2 --samplers=top_x
--samplers=top_k,top_k --logit-bias=x --logit-bias=1 --logit-bias=a=1 --logit-bias=1=x
--logit-bias=1=nan --logit-bias=99999=1 --stop= --dry-breakers= --keep=-1 --keep=x --keep=511
-O=x -O=host -O=host.threads -O=.x=1 --chat-template=/nowhere/x.jinja
"""
ALSO = {"--repeat-last-n": "penalty", "-t": "--threads", "-n": "max"}


@pytest.mark.parametrize("bad", RUN.split())
def test_bad_value_of_run(umbel, story, bad):
    """A bad value of an option is refused, and the option is named."""
    done = umbel("run", story, "Once", "-n", "1", bad)

    flag = bad.partition("=")[0]
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("umbel: error: ")
    assert flag in done.err or ALSO[flag] in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("bench {} -p -1", "-p"),
        ("bench {} -p x", "-p"),
        ("bench {} -n -1", "-n"),
        ("bench {} -p 0 -n 0", "-p, -n"),
        ("bench {} -b 0", "-b"),
        ("bench {} -b 1,,2", "-b"),
        ("bench {} -t -1", "-t"),
        ("bench {} -t 1;2", "-t"),
        ("bench {} -r 0", "-r"),
        ("bench {} --kv f8", "--kv"),
        ("bench {} --device nowhere", "'nowhere'"),
        ("bench", "MODEL"),
        ("plan {} --ubatch 0", "--ubatch"),
        ("plan {} --device host:7", "'host:7'"),
        ("run {} x --device nowhere", "'nowhere'"),
        ("run {} x --device auto,nowhere", "'nowhere'"),
        ("run {} x -O host.nothing=1", "'nothing'"),
        ("run {} x -O host.threads=x", "host.threads"),
        ("run {} x -O nowhere.threads=1", "'nowhere'"),
        ("run {} x --special --chat", "--special"),
        ("run --demo a b", "--demo"),
        ("run", "MODEL"),
        ("chat", "MODEL"),
        ("chat {} --demo", "--demo"),
        ("chat {} --max-tokens x", "--max-tokens"),
        ("run {}", "TEXT"),
        ("tokenize {}", "TEXT"),
        ("inspect /nowhere.gguf", "/nowhere.gguf"),
        ("inspect", "MODEL"),
        ("devices --what", "--what"),
    ],
)
def test_bad_words(umbel, story, words, named):
    """What is missing, unknown or contradictory is refused, and named."""
    done = umbel(*[word.format(story) for word in words.split()])

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("umbel: error: ")
    assert named in done.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rnu"], "did you mean `umbel run`?"),
        (["turnips"], "`umbel --help`"),
        (["run", "m", "x", "--tmp", "1"], "`umbel run --help`"),
        (["run", "m", "x", "y"], "`umbel run --help`"),
        (["run", "m", "x", "--kv", "f61"], "q8_0"),
        (["--verison"], "`umbel --help`"),
        (["--debug"], "`umbel --help`"),
        (["--"], "`umbel --help`"),
    ],
)
def test_unknown_words(umbel, words, hint):
    """A word that is unknown is answered with where to find those that there are."""
    done = umbel(*words)

    assert (done.code, done.out) == (2, "")
    assert hint in done.err


def test_file_that_is_none(umbel, tmp_path):
    """A file that is no GGUF file is one error; with --debug comes the traceback."""
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\x03\0\0\0")

    plain, debug = umbel("run", str(bad), "x"), umbel("run", str(bad), "x", "--debug")

    assert (plain.code, debug.code) == (2, 2)
    assert str(bad) in plain.err
    assert "Traceback" not in plain.err
    assert "Traceback" in debug.err
    assert debug.err.endswith(plain.err)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RuntimeError("one\ntwo"), 1, "umbel: internal error: RuntimeError: one two\n"),
        (OptionError("no", where="top_p", got=3), 2, "umbel: error: no\n  where: --top-p\n"),
        (OSError(errno.ENOSPC, "No space left", "f"), 2, "umbel: error: No space left\n"),
        (MemoryError(), 2, "umbel: error: there is not enough memory\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_everything_that_can_happen(umbel, monkeypatch, error, code, text):
    """Each kind of end has its exit code, and never a traceback."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_exit_code", fail)

    done = umbel("devices")

    assert (code, "") == (done.code, done.out)
    assert done.err.startswith(text)
    assert "Traceback" not in done.err

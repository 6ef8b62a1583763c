"""`umbel compare` as a command: bad input, files that cannot be written, ctrl-c."""

import os
import signal
from pathlib import Path

from umbel_kit import comparison

KIT = Path(__file__).parents[2]


def test_bad_input(umbel, model, tmp_path):
    """One plain line, exit code 2."""
    case = tmp_path / "case.npz"
    for words, text in (
        ((model(), "--device", "npu"), "there is no device 'npu'"),
        ((), "MODEL is missing"),
        ((model(), "-p", 0), "a number is out of range"),
        ((model(), "--limit", "nan"), "a number is out of range"),
        ((model(), "--chained", "--save", case), "there is no case to be kept"),
        ((model(), "--save", model()), "is another kind of file, and stays as it is"),
        ((model(), "--replay", case), "a case is run by itself"),
        (("--replay", case), "there is no such file"),
        ((tmp_path / "no.gguf",), "no.gguf"),
    ):
        done = umbel(*words)
        assert (done.code, done.out) == (2, ""), words
        assert done.err.startswith("umbel: error: ")
        assert text in done.err
        assert "Traceback" not in done.err


def test_a_case_that_cannot_be_written(umbel, model, odd, tmp_path, wrong):
    """The fault is told all the same."""
    odd.spoil = wrong("swiglu")
    done = umbel(model(), "--device", "odd", "--save", tmp_path / "no/case.npz")
    assert done.code == 2
    assert "swiglu (swiglu) on odd:0" in done.out
    assert "the file cannot be written" in done.err


def test_nothing_is_kept_where_nothing_differs(umbel, model, tmp_path):
    """A note says so."""
    done = umbel(model(), "--device", "host", "--save", tmp_path / "case.npz")
    assert done.code == 0
    assert "case.npz is not written, as nothing differs" in done.err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c(umbel, model, odd):
    """The device is told to stop, and waited for."""

    def spoil(node, slots):
        if node.op.name == "swiglu":
            os.kill(os.getpid(), signal.SIGINT)
            assert odd.cancelled.wait(20)

    odd.spoil = spoil
    done = umbel(model(), "--device", "odd")
    assert (done.code, done.out, done.err) == (130, "", "")
    assert odd.cancelled.is_set()


def test_the_kit_brings_the_command():
    """The entry point that makes `umbel compare` is this module."""
    entry = '[project.entry-points.umbel]\ncompare = "umbel_kit.comparison"\n'
    assert entry in (KIT / "pyproject.toml").read_text("utf-8")
    assert comparison.__name__ == "umbel_kit.comparison"

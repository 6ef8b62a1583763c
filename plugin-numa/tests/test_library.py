"""What is told where the library is missing, broken or of another build, and where kernels are
asked for by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import umbel_numa
from umbel import plugins
from umbel.errors import DeviceError, OptionError
from umbel_numa import library
from umbel_numa.engine import Engine


def test_missing_or_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    for content in (None, b"no library"):
        if content is not None:
            (tmp_path / "libumbel_numa.so").write_bytes(content)
        with pytest.raises(DeviceError, match=r"(?s)cannot be loaded.*install") as caught:
            library.library.__wrapped__()
        assert str(tmp_path) in str(caught.value)


def test_of_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another layout of what it is given, or a function that it does not have."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "STEP", np.dtype([("op", "<i4")]))
        with pytest.raises(DeviceError, match="of another build"):
            library.library.__wrapped__()
    monkeypatch.setitem(library._PROTOTYPES, "un_of_tomorrow", (None,))
    with pytest.raises(DeviceError, match="un_of_tomorrow"):
        library.library.__wrapped__()


def test_kernels_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not there, and those that the processor cannot run, are refused."""
    monkeypatch.setattr(library, "variants", lambda: {"fast": False, "good": True, "any": True})
    monkeypatch.delenv(library.FORCED, raising=False)
    assert library.variant() == "good"
    monkeypatch.setenv(library.FORCED, "any")
    assert library.variant() == "any"
    for name, what in (("fast", "this processor cannot run"), ("foo", "there are no")):
        monkeypatch.setenv(library.FORCED, name)
        with pytest.raises(OptionError, match=f"(?s){what} kernels called '{name}'.*good, any"):
            Engine(1)


def test_scalar_kernels_always_run() -> None:
    assert library.variants()["scalar"]
    assert list(library.variants())[-1] == "scalar"


@pytest.fixture
def found() -> plugins.Plugins:
    plugins.get().load()
    return plugins.get()


@pytest.mark.parametrize("given", ["-1", "abc", "1.5", ""])
def test_threads_that_are_no_number(found: plugins.Plugins, given: str) -> None:
    with pytest.raises(OptionError, match=r"numa\.threads cannot be"):
        found.option_values("numa", {"threads": given})


def test_options(found: plugins.Plugins) -> None:
    known = found.option_values("numa", {"threads": "3", "precise": True})
    assert (known["threads"], known["precise"]) == (3, True)
    assert {o.name for o in umbel_numa.options()} <= set(known)
    with pytest.raises(OptionError, match=r"numa\.precise cannot be 'maybe'"):
        found.option_values("numa", {"precise": "maybe"})


def test_a_run_without_memory() -> None:
    """Scratch that is not to be had ends the run; the engine goes on."""
    engine, lib = Engine(2), library.library()
    steps, tensors = np.zeros(2, library.STEP), np.zeros(1, library.TENSOR)
    steps["op"], steps["barrier"] = library.operations()["prepare"], 1
    steps["inputs"], steps["out"] = 1, -1
    tensors["n"], tensors["s"] = (1, 1, 1, 1 << 48), 4
    program = lib.un_program_new(
        engine.handle, steps.ctypes.data, 2, tensors.ctypes.data, 1, 1 << 12
    )
    assert [lib.un_run(engine.handle, program, 2) for _ in range(3)] == [2, 2, 2]
    lib.un_program_free(program)
    empty = lib.un_program_new(engine.handle, steps.ctypes.data, 0, tensors.ctypes.data, 0, 0)
    assert lib.un_run(engine.handle, empty, 2) == 0
    lib.un_program_free(empty)
    engine.close()

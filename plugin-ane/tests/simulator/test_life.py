"""A program's life: identifiers, what outlives a process, who owns a folder, faults, counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pytest
from ane_rig import HOW, LEAST, STRICT, W, blob, of, program, run, say, tensor, weight
from umbel.errors import OptionError
from umbel_ane import profile
from umbel_ane.drivers import AneError, Model, Request
from umbel_ane.drivers.simulator import SimulatedCrash, Simulator
from umbel_ane.drivers.simulator.store import root

S16 = (1, 16, 1, 16)
X = {"x": tensor(S16)}
BODY = weight((16, 16, 1, 1)) + say(S16, "y", f"conv({HOW}, weight = W, x = x)")
TEXT = program(X, BODY, "y")
ONES = np.ones((16, 16), np.float16)


_made: list[Model] = []


@pytest.fixture(autouse=True)
def all_released() -> Iterator[None]:
    yield
    while _made:
        _made.pop().release()


def made(driver: Simulator, factor: float = 1, text: bytes = TEXT) -> Model:
    _made.append(driver.model(driver.descriptor(text, {W: blob(ONES * factor)})))
    return _made[-1]


def result(driver: Simulator, model: Model) -> float:
    """Of ones: 16 times the weights' value."""
    a, b = driver.surface(LEAST), driver.surface(LEAST)
    with a.lock() as memory:
        memory[:512].view(np.float16)[:] = 1
    model.evaluate(Request([a], [b]))
    with b.lock(read_only=True) as memory:
        return float(memory[:512].view(np.float16)[-1])


def staged(model: Model) -> Path:
    return model.staged.folder  # type: ignore[attr-defined,no-any-return]


def test_identifiers() -> None:
    """Three SHA-256; contents of weights count where the profile says so."""
    other = program(X, BODY + say(S16, "z", "relu(x = y)"), "z")
    for name, by_contents in ((STRICT, False), ("m4-macos27", True)):
        driver = Simulator(profile.load(name))
        one, two = made(driver).hex_id, made(driver, 2).hex_id
        assert [len(part) for part in one.split("_")] == [64, 64, 64]
        assert (one != two) == by_contents
        assert made(driver, text=other).hex_id != one
        assert driver.descriptor(TEXT, {"@model_path/v.bin": blob(ONES)}).hex_id != one


def test_the_same_identifier_gives_the_old_program() -> None:
    """What Orion's delta compile ran into: it is found compiled, and has the old weights."""
    driver = Simulator(profile.load())
    made(driver).compile()
    second = made(driver, 2)
    assert second.compiled_exists()
    second.load()
    assert result(driver, second) == 16
    second.purge()
    assert not second.compiled_exists()
    second.compile()
    second.load()
    assert result(driver, second) == 32


def test_a_folder_with_two_owners() -> None:
    driver = Simulator(profile.load())
    first, second = made(driver), made(driver)
    first.compile()
    second.compile()
    assert staged(first) == staged(second)
    assert (staged(first) / "model.mil").read_bytes() == TEXT
    assert (staged(first) / "w.bin").exists()
    first.release()
    first.release()
    assert (staged(second) / "w.bin").exists()
    second.release()
    assert not staged(second).exists()
    assert second.compiled_exists()  # what the system keeps is another copy


def test_compile_reads_the_disk() -> None:
    """What is staged counts, not what the descriptor was given."""
    driver = Simulator(profile.load())
    model = made(driver)
    model.rewrite(W, blob(ONES * 3))
    model.compile()
    model.load()
    assert result(driver, model) == 48
    model.unload()
    (staged(model) / "w.bin").unlink()
    model.load()  # from the copy
    assert result(driver, model) == 48
    with pytest.raises(AneError, match="InvalidMILProgram"):
        model.compile()


def test_a_bundle_that_is_not_staged() -> None:
    driver = Simulator(profile.load("m4-macos27"))
    model = made(driver)
    model.compile()
    (staged(model) / "model.mil").unlink()
    with pytest.raises(AneError) as caught:
        model.load()
    assert (caught.value.code, caught.value.text) == (10, "verifyBundleAtPath")


@pytest.mark.parametrize(("reload", "value"), [("reread", 32), ("snapshot", 16)])
def test_reload(reload: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = of(STRICT, reload=reload)
    for fault, wanted in (("", value), ("stale", 16)):
        monkeypatch.setenv("UMBEL_ANE_FAULT", fault)
        driver = Simulator(rules)
        driver.clear()
        model = made(driver)
        model.compile()
        model.load()
        assert result(driver, model) == 16
        model.unload()
        model.rewrite(W, blob(ONES * 2))
        model.load()
        assert result(driver, model) == wanted


SECOND = """
import sys
sys.path.insert(0, sys.argv[1])
from test_life import Simulator, made, profile, result
driver = Simulator(profile.load())
model = made(driver)
print(model.compiled_exists(), end=" ")
model.compiled_exists() or model.compile()
model.load()
print(result(driver, model), driver.compiles, len(driver.cached()))
"""


def test_compiled_programs_outlive_the_process() -> None:
    def process() -> str:
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", SECOND, here]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        return done.stdout.strip() or done.stderr

    assert process() == "False 16.0 1 1"
    assert process() == "True 16.0 0 1"
    driver = Simulator(profile.load())
    assert driver.cached() == [made(driver).hex_id]
    assert Simulator(profile.load("m1")).cached() == []
    assert driver.clear() == 1
    assert process() == "False 16.0 1 1"


def test_the_store_shares_weights_and_drops_them() -> None:
    driver = Simulator(profile.load())
    other = program(X, BODY + say(S16, "z", "relu(x = y)"), "z")
    first, second = made(driver), made(driver, text=other)
    first.compile()
    second.compile()
    blobs = root() / STRICT / "blobs"
    assert len(list(blobs.iterdir())) == 1
    first.purge()
    assert len(list(blobs.iterdir())) == 1
    second.load()
    second.purge()
    assert list(blobs.iterdir()) == []
    assert result(driver, second) == 16  # it is loaded still
    second.release()
    with pytest.raises(AneError, match="not compiled"):
        second.load()


def test_a_broken_store_is_no_program() -> None:
    driver = Simulator(profile.load())
    model = made(driver)
    model.compile()
    (root() / STRICT / "programs" / model.hex_id / "files.json").write_text("{")
    with pytest.raises(AneError) as caught:
        model.load()
    assert caught.value.code == 6


def test_no_valid_text() -> None:
    driver = Simulator(profile.load())
    wrong = TEXT.replace(b"[1, 16, 1, 16]> y", b"[1, 8, 1, 16]> y")
    for text in (b"program(1.3)", b"\xff", wrong, TEXT.replace(b"x = x", b"x = q")):
        with pytest.raises(AneError, match="InvalidMILProgram"):
            made(driver, text=text).compile()


# faults


def asked(monkeypatch: pytest.MonkeyPatch, text: str) -> Simulator:
    monkeypatch.setenv("UMBEL_ANE_FAULT", text)
    return Simulator(profile.load())


def test_faults_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = asked(monkeypatch, "compile:2, load:1, evaluate:2+, surface:3")
    model = made(driver)
    model.compile()
    with pytest.raises(AneError, match="ANECCompile"):
        model.compile()
    model.compile()
    with pytest.raises(AneError, match="load failure"):
        model.load()
    model.load()
    a, b = driver.surface(LEAST), driver.surface(LEAST)
    with pytest.raises(AneError, match="IOSurfaceCreate"):
        driver.surface(LEAST)
    model.evaluate(Request([a], [b]))
    for _ in range(2):
        with pytest.raises(AneError) as caught:
            model.evaluate(Request([a], [b]))
        assert caught.value.code == 0x1D


def test_faults_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = asked(monkeypatch, "nan:2,canary:3")
    model = made(driver)
    model.compile()
    model.load()
    found = [result(driver, model) for _ in range(4)]
    assert np.array_equal(found, [16, np.nan, -16, 16], equal_nan=True)


@pytest.mark.parametrize("call", ["compile", "load"])
def test_crashes(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = asked(monkeypatch, f"crash:{call}:1")
    model = made(driver)
    with pytest.raises(SimulatedCrash):
        (model.compile if call == "compile" else model.load)()


@pytest.mark.parametrize("text", ["compil", "compile:0", "crash:nan", "compile:x", "crash"])
def test_unknown_faults(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="evaluate"):
        asked(monkeypatch, text)


# counters


def test_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR_REPORT", str(path))
    run(STRICT, TEXT, {"x": np.ones(S16)}, {W: blob(ONES)})
    told = json.loads(path.read_text())
    counted = {k: told[k] for k in ("compiles", "loads", "dispatches", "surfaces", "profile")}
    assert counted == {
        "compiles": 1,
        "loads": 1,
        "dispatches": 1,
        "surfaces": 2,
        "profile": STRICT,
    }
    rates = profile.load().costs
    wanted = rates.compile_ms + rates.load_ms + rates.dispatch_ms
    assert told["virtual_ms"] == pytest.approx(wanted, abs=0.01)
    assert [p["evaluate"] for p in told["programs"].values()] == [1]


def test_what_it_tells_of_itself() -> None:
    driver = Simulator(profile.load("m1"))
    assert driver.simulated
    assert driver.info().architecture == "h13g"
    assert driver.info().system == "macOS 14.5"
    assert driver.status()["profile"] == "m1"


def test_surfaces_the_host_wrote_cost() -> None:
    rates = profile.load().costs
    driver = Simulator(of(STRICT, costs=attrs.evolve(rates, surface_ms=1.0)))
    model = made(driver)
    model.compile()
    model.load()
    a, b = driver.surface(LEAST), driver.surface(LEAST)
    model.evaluate(Request([a], [b]))
    first = driver.clock.spent["evaluate"]
    model.evaluate(Request([a], [b]))
    assert first == pytest.approx(driver.clock.spent["evaluate"] - first + 2.0)

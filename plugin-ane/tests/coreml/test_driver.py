"""The driver over Core ML: all of it but `predict`, for which value inference stands in."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from umbel_ane.drivers import AneError, Driver, Request
from umbel_ane.drivers.coreml import CoremlDriver, default_folder

# coremltools leaves folders of its own to the garbage collector
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

pytest.importorskip("coremltools")


@pytest.fixture
def driver(tmp_path: Path, by_inference: Any) -> CoremlDriver:
    return CoremlDriver(tmp_path, by_inference)


def model(driver: CoremlDriver, sample: Any) -> Any:
    return driver.model(driver.descriptor(sample.text.encode(), sample.weights))


def test_life(driver: CoremlDriver, sample: Any, by_inference: Any) -> None:
    """Compile, load, evaluate: packed values in, packed values out, names sorted."""
    whole: Driver = driver
    assert (whole.name, whole.simulated, whole.profile.binding) == ("Core ML", False, "sorted")
    made = model(driver, sample)
    assert not made.compiled_exists()
    made.compile()
    assert made.compiled_exists()
    made.load()
    assert by_inference.opened == [made.package]
    order = made.attributes()
    assert order.inputs == ("a00_x", "a01_mask")
    assert order.outputs == ("b00_y", "b01_shares")
    inputs = sample.inputs()
    surfaces = [driver.surface(49152) for _ in range(4)]
    for name, surface in zip(order.inputs, surfaces, strict=False):
        with surface.lock() as memory:
            memory[: inputs[name].nbytes] = inputs[name].reshape(-1).view(np.uint8)
    made.evaluate(Request(surfaces[:2], surfaces[2:]))
    expected = by_inference.predict(inputs)
    for name, surface in zip(order.outputs, surfaces[2:], strict=True):
        with surface.lock(read_only=True) as memory:
            found = memory[: expected[name].nbytes].view(np.float16)
            np.testing.assert_array_equal(found, expected[name].ravel())
            assert not memory[expected[name].nbytes :].any()
    made.unload()
    with pytest.raises(AneError, match="before it is loaded"):
        made.evaluate(Request(surfaces[:2], surfaces[2:]))
    made.release()
    made.release()


def test_kept(driver: CoremlDriver, sample: Any) -> None:
    """A package is there for the next driver; other weights are another package."""
    first = model(driver, sample)
    first.compile()
    again = CoremlDriver(driver.folder, driver.open_package)
    assert model(again, sample).compiled_exists()
    assert (driver.compiles, again.compiles) == (1, 0)
    name, data = next(iter(sample.weights.items()))
    other = again.descriptor(sample.text.encode(), {name: data[:-1] + b"\1"})
    assert other.hex_id != first.hex_id
    assert not again.model(other).compiled_exists()
    assert again.cached() == [first.hex_id]
    assert again.status()["packages"] == 1
    first.purge()
    assert again.cached() == []
    first.compile()
    assert (again.clear(), again.cached()) == (1, [])
    again.close()


def test_identifier() -> None:
    """Names and ends of weights are told apart."""
    ids = [
        CoremlDriver().descriptor(text, weights).hex_id
        for text, weights in (
            (b"a", {}),
            (b"a", {"w": b""}),
            (b"a", {"w": b"x"}),
            (b"a", {"w": b"x", "v": b""}),
            (b"a", {"w": b"", "v": b"x"}),
        )
    ]
    assert len(set(ids)) == len(ids)
    assert ids[0] == hashlib.sha256(b"a").hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("func main", "function main", "func is missing"),
        ("-> (b00_y", "-> (nothing", "not defined"),
    ],
)
def test_text_refused(driver: CoremlDriver, sample: Any, old: str, new: str, what: str) -> None:
    with pytest.raises(AneError, match=what):
        driver.model(driver.descriptor(sample.text.replace(old, new).encode(), {}))


def test_compile_refused(driver: CoremlDriver, sample: Any) -> None:
    made = driver.model(driver.descriptor(sample.text.encode(), {}))
    with pytest.raises(AneError, match="no such weight file"):
        made.compile()
    text = sample.text.replace("sigmoid(x", "no_such(x").encode()
    made = driver.model(driver.descriptor(text, sample.weights))
    with pytest.raises(AneError, match="no such operation") as caught:
        made.compile()
    assert "gate = no_such" in str(caught.value.where)
    assert (driver.compiles, made.compiled_exists()) == (0, False)


def test_order_of_calls(driver: CoremlDriver, sample: Any) -> None:
    made = model(driver, sample)
    with pytest.raises(AneError, match="before it is compiled"):
        made.load()
    with pytest.raises(AneError, match="weights in its package"):
        made.rewrite(next(iter(sample.weights)), b"")
    made.compile()
    made.load()
    surface = driver.surface(49152)
    with pytest.raises(AneError, match="number of surfaces"):
        made.evaluate(Request([surface], [surface]))
    with pytest.raises(AneError, match="smaller than"):
        made.evaluate(Request([surface, driver.surface(8)], [surface, surface]))
    surface.release()
    with pytest.raises(AneError, match="after its release"):
        made.evaluate(Request([surface] * 2, [surface] * 2))


def test_failures_of_core_ml(tmp_path: Path, sample: Any) -> None:
    """What its calls raise becomes `AneError` with their words."""

    class Broken:
        def predict(self, arrays: object) -> object:
            raise RuntimeError("error computing NN outputs")

    driver = CoremlDriver(tmp_path, lambda package: Broken())
    made = model(driver, sample)
    made.compile()
    made.load()
    surfaces = [driver.surface(49152) for _ in range(4)]
    with pytest.raises(AneError, match="cannot run") as caught:
        made.evaluate(Request(surfaces[:2], surfaces[2:]))
    assert caught.value.text == "error computing NN outputs"


@pytest.mark.skipif(platform.system() == "Darwin", reason="Core ML is here")
def test_load_elsewhere(tmp_path: Path, sample: Any) -> None:
    driver = CoremlDriver(tmp_path)
    made = model(driver, sample)
    made.compile()
    with pytest.raises(AneError, match="on macOS only"):
        made.load()


def test_surface_is_read_only_when_asked() -> None:
    surface = CoremlDriver().surface(16)
    with surface.lock(read_only=True) as memory, pytest.raises(ValueError, match="read-only"):
        memory[0] = 1
    with surface.lock() as memory:
        memory[0] = 1
    assert surface.nbytes == 16


def test_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "umbel" / "ane-coreml"
    info = CoremlDriver().info()
    assert info.architecture == platform.machine()

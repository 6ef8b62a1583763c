"""Models on a simulated Neural Engine; helpers of these tests stand beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

STRICT = "orion-m4-macos15"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was compiled is kept for all these tests."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def load(oracles: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """load(name, ...): a model of the oracles, on a Neural Engine of the strict profile, opened
    for this test alone, unless told otherwise."""
    import umbel
    from umbel import plugins

    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", STRICT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(compiled))
    found = plugins.Plugins(only="ane")
    monkeypatch.setattr(plugins, "_process", found)
    made: list[umbel.Model] = []

    def of(name: str, **how: Any) -> umbel.Model:
        given = {"device": "ane:0", "ctx": 128, "parallel": 2, **how}
        made.append(umbel.load(oracles / f"{name}.gguf", **given))
        return made[-1]

    yield of
    for model in made:
        model.close()
    found.close()


@pytest.fixture
def health() -> Callable[[], dict[str, Any]]:
    """What the device tells of itself."""

    def asked() -> dict[str, Any]:
        from umbel import plugins

        device = plugins.get().find("ane:0")
        return dict(plugins.get().backends["ane"].status(device))

    return asked

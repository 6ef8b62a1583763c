"""A model on the host, and its sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from umbel import gguf
from umbel.models import ModelDefinition, architecture
from umbel.ops import OPS
from umbel.plugins import Plugins
from umbel.runner import Runner, Settings

ORACLES = Path(__file__).parents[1] / "data" / "oracles"


@pytest.fixture
def load() -> Iterator[Callable[..., Runner]]:
    """load(model, **settings): a runner on the host alone."""
    files: list[Any] = []

    def loaded(name: str, **settings: Any) -> Runner:
        files.append(gguf.open(ORACLES / f"{name}.gguf"))
        found = architecture(files[-1].get("general.architecture", str))
        definition = ModelDefinition(files[-1], found, OPS)
        found = Plugins(only="")
        target = found.open(found.find("host"))
        how = {"ctx": 64, "ubatch": 16, "parallel": 3} | settings
        return Runner(definition, [target], Settings(**how))

    yield loaded
    for file in files:
        file.close()


@pytest.fixture
def ids() -> Callable[[str], list[int]]:
    """The token ids of a model of the oracle folder."""

    def read(name: str) -> list[int]:
        with np.load(ORACLES / f"{name}.npz") as arrays:
            return arrays["ids"].tolist()

    return read

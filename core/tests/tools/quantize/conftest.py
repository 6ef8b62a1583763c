"""Models to quantise: small files of any shape, and descriptions of large ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from umbel import gguf, host, plugins
from umbel.gguf import GGUFFile, TensorInfo
from umbel.gguf.header import Header, Metadata
from umbel.gguf.types import F32


@pytest.fixture(autouse=True)
def only_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins that are installed here stay out of the tests."""
    monkeypatch.setattr(plugins, "_process", plugins.Plugins(only=""))


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads, whatever the machine has."""
    monkeypatch.setattr(host, "cpus", lambda: 2)
    monkeypatch.setattr("umbel.tools.quantize.cpus", lambda: 2)


@pytest.fixture
def described() -> Callable[..., GGUFFile]:
    """A model without data: of these names and shapes, or names of 256 by 256."""

    def make(tensors: Any, arch: str = "llama", **keys: Any) -> GGUFFile:
        shapes = tensors if isinstance(tensors, dict) else dict.fromkeys(tensors, (256, 256))
        infos = {name: TensorInfo(name, shape, F32, 0, 0) for name, shape in shapes.items()}
        values = {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
        metadata = Metadata({"general.architecture": arch, **values}, {})
        return GGUFFile(Path("described.gguf"), Header(3, 32, metadata, infos), [])

    return make


@pytest.fixture
def model(write_gguf: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A file of these float32 tensors: shapes, or arrays."""

    def make(name: str = "in.gguf", alignment: int = 32, **tensors: Any) -> Path:
        random = np.random.default_rng(3)
        arrays = {
            key: random.standard_normal(value, np.float32)
            if isinstance(value, tuple)
            else value
            for key, value in tensors.items()
        }
        keys = {"general.architecture": "llama"}
        return write_gguf(tmp_path / name, keys, arrays)

    return make


@pytest.fixture
def raw() -> Callable[[Path, str], bytes]:
    """The bytes of a tensor of a file."""

    def read(path: Path, name: str) -> bytes:
        with gguf.open(path) as file:
            return file.array(name).tobytes()

    return read

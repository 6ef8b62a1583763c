"""What the tests of several rooms share: the oracles, and a writer of GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ORACLES = Path(__file__).parent / "data" / "oracles"


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], dict[str, np.ndarray]]:
    """The token ids and the reference results of a model of the oracle folder."""

    def loaded(name: str) -> dict[str, np.ndarray]:
        with np.load(ORACLES / f"{name}.npz") as arrays:
            return dict(arrays)

    return loaded


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """Writes a file of keys and tensors: arrays, or (bytes, number of their type)."""
    return _write_gguf


def _write_gguf(path: Path, keys: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """A file of these keys and tensors: arrays, or (bytes, number of their type)."""
    import gguf as package

    writer = package.GGUFWriter(path, keys["general.architecture"])
    kinds = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in keys.items():
        if key != "general.architecture":
            kinds[type(value)](key, value)
    for name, tensor in tensors.items():
        array, number = tensor if isinstance(tensor, tuple) else (tensor, 0)
        kind = package.GGMLQuantizationType(number)
        writer.add_tensor(name, np.ascontiguousarray(array), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

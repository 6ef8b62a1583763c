"""Folders as Hugging Face has them, written from the stored cases (data/convert/README.md)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

DATA = Path(__file__).parents[2] / "data" / "convert"
CASES: dict[str, Any] = json.loads((DATA / "cases.json").read_text())


def weights(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """The values of a case's tensors, which follow from their names.

    RandomState gives the same numbers in all versions of NumPy.
    """
    return {name: _values(name, shape) for name, shape in shapes.items()}


def _values(name: str, shape: list[int]) -> np.ndarray:
    drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("A_log"):
        return (0.5 * drawn).astype(np.float32)
    if len(shape) > 1:
        return (0.1 * drawn).astype(np.float32)
    scale = name.endswith((".D", "weight"))  # of norms, and of what skips a state space
    return (scale + 0.2 * drawn).astype(np.float32)


def byte_tokens(n: int) -> dict[str, Any]:
    """A tokenizer.json of n tokens: control tokens, letters, and a pair of these."""
    texts = ["<s>", "</s>", *map(chr, range(0x41, 0x41 + n - 3)), "he"]
    added = [{"id": i, "content": texts[i], "special": True} for i in (0, 1)]
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(texts)}, "merges": ["h e"]}
    pre = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return {"model": model, "pre_tokenizer": pre, "added_tokens": added}


class FolderMaker:
    """Writes folders of cases, changed as a test wants them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, case: str, **changes: Any) -> Path:
        """The folder of a case; `changes` are of its config.json, None takes a key out."""
        stored = CASES[case]
        folder = self.root / case
        folder.mkdir()
        config = {**stored["config"], **changes}
        gone = {key for key, value in changes.items() if value is None}
        self.write(folder, "config.json", {k: config[k] for k in config if k not in gone})
        self.write(folder, "tokenizer.json", byte_tokens(config["vocab_size"]))
        self.tensors(folder, weights(stored["tensors"]))
        return folder

    def write(self, folder: Path, name: str, value: Any) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))

    def tensors(self, folder: Path, arrays: dict[str, np.ndarray], name: str = "") -> None:
        save_file(arrays, folder / (name or "model.safetensors"))


@pytest.fixture(scope="session")
def cases() -> dict[str, Any]:
    """All stored cases: `config` and the shapes of `tensors`."""
    return CASES


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """The name of each case."""
    return str(request.param)


@pytest.fixture
def make(tmp_path: Path) -> FolderMaker:
    return FolderMaker(tmp_path)


@pytest.fixture(scope="session")
def results() -> Callable[[str], dict[str, np.ndarray]]:
    """The ids of a case, the rows and the results there."""

    def loaded(case: str) -> dict[str, np.ndarray]:
        with np.load(DATA / "cases.npz") as arrays:
            return {key: arrays[f"{case}.{key}"] for key in ("ids", "rows", "ref")}

    return loaded

"""Devices of the tests' own: any kernels, threads and precision, beside each other; and the
models with known results on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import umbel_numa
from umbel import gguf, plugins
from umbel.gguf.types import F32
from umbel.graph import Tensor
from umbel.hookspecs import Device, DeviceInfo
from umbel.models import ModelDefinition, architecture
from umbel.ops import OPS
from umbel.plan import Target
from umbel.runner import Runner, Settings
from umbel.tools.gguf_file import header, padding
from umbel.tools.quantize import quantise
from umbel_numa.engine import Engine
from umbel_numa.library import variant
from umbel_numa.memory import NativeMemory
from umbel_numa.support import unsupported

sys.path.insert(0, str(Path(__file__).parent))  # what tests share stands beside them

import several_nodes

ORACLES = Path(__file__).parents[2] / "core/tests/data/oracles"

Load = Callable[..., Runner]
Nodes = Callable[..., None]


def target_of(engine: Engine) -> Target:
    """An engine as the device that the plugin makes of it."""
    memory = NativeMemory(engine)

    def supported(_: Device, node: Tensor) -> str | None:
        reason = unsupported(node, engine)
        if reason is None:
            memory.note(node)
        return reason

    hooks = SimpleNamespace(
        op_supported=supported,
        graph_compute=lambda _, graph: engine.compute(graph),
        prepare=lambda *_: None,
        sync=lambda _: engine.cancel(False),
        cancel=lambda _: engine.cancel(True),
        forget=lambda _, uid: engine.forget(uid),
        status=lambda _: {},
    )
    info = DeviceInfo(memory_total=1 << 40, memory_free=1 << 40)
    return Target(Device("numa:0", "", 100, reads_host=True), info, memory, hooks)


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    """load(name, threads=, kernels=, precise=, **settings): a model of the oracle folder, or of
    a path, on an engine of its own; open to the end of the module."""
    opened: list[tuple[gguf.GGUFFile, Engine, Runner]] = []

    def loaded(
        name: str | Path,
        *,
        threads: int = 2,
        kernels: str = "",
        precise: bool = False,
        **settings: object,
    ) -> Runner:
        path = name if isinstance(name, Path) else ORACLES / f"{name}.gguf"
        file = gguf.open(path)
        found = architecture(file.get("general.architecture", str))
        definition = ModelDefinition(file, found, OPS)
        engine = Engine(threads, precise=precise, kernels=kernels or variant())
        given = Settings(**{"ctx": 64, "parallel": 8} | settings)
        opened.append((file, engine, Runner(definition, [target_of(engine)], given)))
        return opened[-1][2]

    yield loaded
    for file, engine, runner in opened:
        runner.close()
        engine.close()
        file.close()


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], dict[str, np.ndarray]]:
    """The token ids and the results of an independent implementation, of a model."""

    def read(name: str) -> dict[str, np.ndarray]:
        with np.load(ORACLES / f"{name}.npz") as arrays:
            return dict(arrays)

    return read


@pytest.fixture(scope="session")
def oracles() -> Path:
    return ORACLES


@pytest.fixture
def on_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Nodes]:
    """on_nodes(n, each=1, **more): the device has so many pretended nodes, and memories of its
    own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def choose(nodes: int, each: int = 1, **more: Any) -> None:
        plugins.get().close()
        where = several_nodes.pretended(nodes, each, **more)
        monkeypatch.setattr(umbel_numa, "placement", lambda *_: where)

    yield choose
    plugins.get().close()


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts that are packed, with the vocabulary of another model."""
    folder = tmp_path_factory.mktemp("mixture")
    with (
        gguf.open(ORACLES / "qwen3moe.gguf") as model,
        gguf.open(ORACLES / "stories260K.gguf") as words,
    ):
        keys = {k: file for file in (words, model) for k in file.metadata}
        values = {k: f.raw_value(k) for k, f in keys.items() if not k.startswith("llama.")}
        n_vocab = len(words.metadata["tokenizer.ggml.tokens"])
        arrays = {name: model.array(name) for name in model.tensors}
        for name in ("token_embd.weight", "output.weight"):
            shape = n_vocab, arrays[name].shape[1]
            arrays[name] = np.random.default_rng(0).standard_normal(shape, np.float32)
        whole = header(values, [(name, a.shape, F32) for name, a in arrays.items()], 32)
        for array in arrays.values():
            whole += array.tobytes() + padding(array.nbytes, 32)
    (folder / "f32.gguf").write_bytes(whole)
    quantise(folder / "f32.gguf", folder / "mixture.gguf", "Q8_0")
    return folder / "mixture.gguf"


@pytest.fixture
def neoverse(tmp_path: Path) -> Path:
    return several_nodes.neoverse(tmp_path)


@pytest.fixture
def epyc(tmp_path: Path) -> Path:
    return several_nodes.epyc(tmp_path)

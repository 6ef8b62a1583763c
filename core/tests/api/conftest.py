"""Models behind the Python API: the small ones with known results, and a scripted one.

The scripted model is a plugin: an operation whose reference gives the logits that the test
wants, and an architecture around it. All else about it is real: file, vocabulary, plan, cache.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import umbel
from umbel import gguf, host, plugins
from umbel.gguf.types import F32, I32
from umbel.graph import Operation, Role, Spec
from umbel.hookspecs import Device, hookimpl
from umbel.models import Architecture
from umbel.plugins import Plugins

ORACLES = Path(__file__).parents[1] / "data" / "oracles"


@pytest.fixture(autouse=True, scope="session")
def only_the_host() -> Iterator[Plugins]:
    """Plugins that are installed here stay out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        made = Plugins(only="")
        patch.setattr(plugins, "_process", made)
        made.add("scripted", _scripted_plugin(), "umbel-scripted")
        yield made


@pytest.fixture
def add_backend(only_the_host: Plugins) -> Iterator[Callable[..., None]]:
    """Adds a backend that computes like the host, with other answers where the test says."""
    names: list[str] = []

    def add(name: str, *, priority: int = 10, **answers: Any) -> None:
        names.append(name)
        only_the_host.add(name, _backend(name, priority, answers))

    yield add
    for name in names:
        only_the_host.backends.pop(name, None)  # it may have been refused
        if only_the_host._open.pop(f"{name}:0", None):
            host.close(Device(f"{name}:0", "", 0))
    only_the_host._devices = None
    only_the_host.faults.clear()


def _backend(name: str, priority: int, answers: Any) -> types.ModuleType:
    told = {k: answers.pop(k) for k in ("simulated", "reads_host") if k in answers}
    told = {"reads_host": True} | told
    info = {k: answers.pop(k) for k in list(answers) if k in dir(umbel.hookspecs.DeviceInfo)}
    hooks: dict[str, Callable[..., Any]] = {
        "devices": lambda: [Device(f"{name}:0", "like the host", priority, **told)],
        "options": host.options,
        "open": lambda device, options, kernels: attrs.evolve(
            host.open(device, options, kernels), **info
        ),
        "close": host.close,
        "buffer_type": host.buffer_type,
        "op_supported": host.op_supported,
        "graph_compute": host.graph_compute,
        "sync": host.sync,
        "cancel": host.cancel,
        "forget": host.forget,
    }
    made = types.ModuleType(f"umbel_{name}")
    made.UMBEL_API = 1
    for hook, function in (hooks | answers).items():
        setattr(made, hook, hookimpl(function))
    return made


@pytest.fixture
def load() -> Iterator[Callable[..., umbel.Model]]:
    """A model of the oracle folder by its name, or of a path; closed after the test."""
    models: list[umbel.Model] = []

    def opened(name: str | Path, **settings: Any) -> umbel.Model:
        path = name if isinstance(name, Path) else ORACLES / f"{name}.gguf"
        models.append(umbel.load(path, **{"device": "host", "ctx": 128} | settings))
        return models[-1]

    yield opened
    for model in models:
        model.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Callable[..., umbel.Model]]:
    """The same, kept for all tests of a module: for those that leave no trace in it."""
    models: dict[str, umbel.Model] = {}

    def opened(name: str, **settings: Any) -> umbel.Model:
        key = f"{name} {settings}"
        if key not in models:
            given = {"device": "host", "ctx": 128, "parallel": 4} | settings
            models[key] = umbel.load(ORACLES / f"{name}.gguf", **given)
        return models[key]

    yield opened
    for model in models.values():
        model.close()


# files


@pytest.fixture
def rewrite(tmp_path: Path, write_gguf: Callable[..., Path]) -> Callable[..., Path]:
    """A model of the oracle folder with other keys or tensors (None takes one away)."""

    def rewritten(name: str, keys: Any = None, tensors: Any = None) -> Path:
        with gguf.open(ORACLES / f"{name}.gguf") as file:
            new_keys = dict(file.metadata) | (keys or {})
            old = {t.name: (file.array(t.name), t.dtype.number) for t in file.tensors.values()}
            new = old | (tensors or {})
            return write_gguf(
                tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}.gguf",
                {k: v for k, v in new_keys.items() if v is not None},
                {k: v for k, v in new.items() if v is not None},
            )

    return rewritten


# the scripted model

EOS = 256  # the vocabulary: the 256 bytes, and then these
WORDS = ("</s>", "<s>", "br", "own", " fox", " end", "\nUser", ":")
SIZE = EOS + len(WORDS)
_scripts: list[Callable[[np.ndarray, np.ndarray], np.ndarray]] = []


@attrs.define
class Script:
    """What the scripted model says, and what became of it.

    `ids[i]` follows the token at position i + `start`; then comes EOS, or the last logits for
    ever. `logits` may hold whole rows instead. `delay` is in seconds a token.
    """

    ids: Sequence[int] = ()
    start: int = 0
    logits: Sequence[np.ndarray] = ()
    endless: bool = False
    delay: float = 0.0
    fails_at: int | None = None
    computed: int = 0

    def row(self, position: int) -> np.ndarray:
        at = position - self.start
        if self.logits:
            return np.asarray(self.logits[min(max(at, 0), len(self.logits) - 1)], np.float32)
        token = self.ids[at] if 0 <= at < len(self.ids) else EOS
        if at >= len(self.ids) and self.endless:
            token = ord("a") + position % 26
        row = np.zeros(SIZE, np.float32)
        row[token] = 20
        return row

    def __call__(self, positions: np.ndarray, rows: np.ndarray) -> np.ndarray:
        self.computed += len(positions)
        time.sleep(self.delay * len(positions))
        if self.fails_at is not None and self.fails_at in positions:
            raise RuntimeError("the script says so")
        return np.array([self.row(p) for p in positions[rows]])


def _scripted_plugin() -> types.ModuleType:
    def infer(x: Any, positions: Any, rows: Any, number: int) -> Spec:
        return Spec((rows.shape[0], SIZE), F32)

    def reference(x: Any, positions: Any, rows: Any, number: int) -> np.ndarray:
        return _scripts[number](positions, rows)

    def build(b: Any) -> Any:
        x = b.embed()
        q, k, v = (b.reshape(x, shape=(x.shape[0], 1, x.shape[1])) for _ in range(3))
        x = b.attend(0, q, k, v, scale=1.0)
        positions = b.leaf(Role.INPUT, "positions", (b.step.n,), I32)
        rows = b.leaf(Role.INPUT, "out_ids", (b.step.rows,), I32)
        return b.script(x, positions, rows, number=b.file.get("scripted.number", int))

    made = types.ModuleType("umbel_scripted")
    made.UMBEL_API = 1
    made.ops = hookimpl(lambda: [Operation("script", infer, reference)])
    made.architectures = hookimpl(lambda: [Architecture("scripted", build)])
    return made


@pytest.fixture
def scripted(
    tmp_path: Path, load: Callable[..., umbel.Model], write_gguf: Callable[..., Path]
) -> Callable[..., Any]:
    """A model that says what a `Script` of these arguments has, and the script."""

    def made(ids: Sequence[int] | bytes = (), **settings: Any) -> tuple[umbel.Model, Script]:
        names = {f.name for f in attrs.fields(Script)}
        known = {k: settings.pop(k) for k in list(settings) if k in names}
        keys = settings.pop("keys", {})
        script = Script(ids, **known)
        _scripts.append(script)
        tokens = [f"<0x{i:02X}>" for i in range(EOS)] + [w.replace(" ", "▁") for w in WORDS]
        metadata = {
            "general.architecture": "scripted",
            "scripted.number": len(_scripts) - 1,
            "scripted.block_count": 1,
            "scripted.embedding_length": 8,
            "scripted.context_length": 4096,
            "scripted.attention.head_count": 1,
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * SIZE,
            "tokenizer.ggml.token_type": [6] * EOS + [3, 3] + [1] * (len(WORDS) - 2),
            "tokenizer.ggml.eos_token_id": EOS,
            "tokenizer.ggml.bos_token_id": EOS + 1,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_space_prefix": False,
        } | keys
        path = tmp_path / f"scripted-{len(_scripts)}.gguf"
        weights = {"token_embd.weight": np.zeros((SIZE, 8), np.float32)}
        return load(write_gguf(path, metadata, weights), **settings), script

    return made

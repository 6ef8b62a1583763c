"""How often experts are chosen: counted, remembered, and what is made of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import umbel
import umbel_numa
from umbel import cli, gguf, plugins
from umbel.gguf.types import F32
from umbel.tools.gguf_file import header, padding
from umbel.tools.quantize import quantise
from umbel_numa import tuned, use
from umbel_numa.placement import Placement

ORACLES = Path(__file__).parents[2] / "core/tests/data/oracles"
Nodes = Callable[..., None]


@pytest.fixture
def on_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Nodes]:
    """on_nodes(n, **more): the device has so many pretended nodes, and memories of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def choose(nodes: int, **more: str) -> None:
        plugins.get().close()
        where = Placement((-1,) * nodes, tuple(range(nodes)), (0,) * nodes, **more)
        monkeypatch.setattr(umbel_numa, "placement", lambda *_: where)

    yield choose
    plugins.get().close()


@pytest.fixture(scope="module")
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


def test_what_is_counted(on_nodes: Nodes, mixture: Path) -> None:
    """Each token of a step has as many as the model says, in every layer; and then no more."""
    on_nodes(2)
    with umbel.load(mixture, "numa", ctx=32) as model:
        engine = umbel_numa.opened()
        found = use.counted(model, engine, 9)
        metadata = model.file.metadata
        model.generate("a", max_tokens=1).read()
        prompt = len(model.tokenizer.encode("The"))
        assert use.counted(model, engine, 9) == found
    experts, used = (metadata[f"qwen3moe.expert_{n}count"] for n in ("", "used_"))
    layers = metadata["qwen3moe.block_count"]
    assert len(found) == 3 * layers
    assert {len(chosen) for chosen in found.values()} == {experts}
    assert {sum(chosen) for chosen in found.values()} == {(prompt + 9 - 1) * used}


def test_a_model_without_experts(on_nodes: Nodes) -> None:
    on_nodes(2)
    with umbel.load(ORACLES / "stories260K.gguf", "numa", ctx=32) as model:
        assert use.counted(model, umbel_numa.opened(), 9) == {}


def test_tuned_experts_are_dealt_by_use(
    on_nodes: Nodes, mixture: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What `tune` counted decides where whole experts lie, and no logit."""
    on_nodes(1)
    ids = list(range(3, 20))
    with umbel.load(mixture, "numa", ctx=64) as model, model.open() as session:
        expected = session.logits(ids)
    on_nodes(2)
    assert cli.main(["numa", "tune", str(mixture), "-p", "8", "-n", "2"]) == 0
    ((name, found),) = json.loads(tuned.path().read_text())["experts"].items()
    skewed = {w: [90, *[1] * (len(chosen) - 1)] for w, chosen in found.items()}
    tuned.save("experts", {name: skewed})

    for experts, told in (("whole", True), ("rows", False)):
        on_nodes(2, experts=experts)
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "umbel"),
            umbel.load(mixture, "numa", ctx=64) as model,
            model.open() as session,
        ):
            np.testing.assert_array_equal(session.logits(ids), expected)
            packed = [w for w in umbel_numa.opened().weights if w.tensor.name in found]
            firsts = {tuple(w.struct["first"][0, :3]) for w in packed if w.struct is not None}
        assert ("dealt by their use" in caplog.text) == told
        assert (firsts == {(0, 1, len(next(iter(found.values()))))}) == told


def test_what_was_changed_by_hand(on_nodes: Nodes, mixture: Path) -> None:
    on_nodes(2, experts="whole")
    assert not use.forget()
    with umbel.load(mixture, "numa", ctx=8):
        (file,) = {w.file for w in umbel_numa.opened().weights if w.file is not None}
        name = use._identity(file)
        for value in (3, {name: 3}, {name: {"w": "x", "v": [1, "2"], "u": [-1]}}):
            known = tuned.load() | {"experts": value}
            tuned.path().parent.mkdir(exist_ok=True)
            tuned.path().write_text(json.dumps(known))
            assert use.recall(file) == {}
        tuned.save("experts", {name: {"w": [1, 2], "v": 3}})
        assert use.recall(file) == {"w": [1, 2]}
    assert use.forget()
    assert not use.forget()

"""The list of architectures, and what a graph tells the engine about itself."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.errors import UnsupportedModelError
from umbel.graph import Role
from umbel.models import NAMES, StateShape, StepShape, architecture

STEP = StepShape(tokens=2, sequences=3, kv_length=9, rows=2)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_has_its_module(name):
    """Each name leads to the architecture of that name; only bert gives hidden states."""
    found = architecture(name)
    assert (name, name == "bert") == (found.name, found.pooled)


def states(model):
    """The states of a graph by name."""
    return {t.name: t for t in model.graph.leaves(Role.STATE)}


def test_an_unknown_architecture():
    """An unknown name is refused with those that there are."""
    with pytest.raises(UnsupportedModelError, match="mamba2, olmo2") as caught:
        architecture("clip", where="a.gguf")
    assert "got: clip" in str(caught.value)


def graph_of(load, name):
    return load(name).definition.graph(STEP, StateShape(cells=40, slots=6))


def inputs_of(model):
    return {t.name for t in model.graph.leaves(Role.INPUT)}


@pytest.mark.parametrize("name", ["llama", "gpt2", "mamba", "lfm2", "gemma3", "qwen3moe"])
def test_shape_of_the_result(load, name):
    """Logits come for the rows asked for."""
    logits, *effects = graph_of(load, name).graph.outputs
    assert (2, load(name).definition.hparams.n_vocab) == logits.shape
    assert all(effect.op.writes for effect in effects)


def test_states_of_a_transformer(load):
    """One cache for keys and one for values in each layer, and how its keys were turned."""
    model = graph_of(load, "qwen3")
    names = {f"{kind}_cache.{i}" for kind in "kv" for i in range(2)}
    assert names == set(states(model))
    assert {(40, 64)} == {t.shape for t in states(model).values()}
    assert [c.cache.name for c in model.cache_ropes] == ["k_cache.0", "k_cache.1"]
    assert [(c.heads, c.rope.n_dims) for c in model.cache_ropes] == [(4, 16), (4, 16)]


def test_states_of_a_recurrent_model(load):
    """States are float32 rows, one for each slot, and are written as effects of the graph."""
    model = graph_of(load, "mamba2")
    shapes = {name: t.shape for name, t in states(model).items()}
    expected = {"conv.0": (6, 160 * 3), "ssm.0": (6, 128 * 16)}
    assert expected == {name: shapes[name] for name in expected}
    assert 1 + len(shapes) == len(model.graph.outputs)
    assert {"tokens", "out_ids", "state_in", "state_out"} == inputs_of(model)


def test_states_of_a_hybrid(load):
    """A layer has the state of its kind."""
    model = graph_of(load, "lfm2")
    names = {"conv.0", "conv.2", "k_cache.1", "v_cache.1", "k_cache.3", "v_cache.3"}
    assert names == set(states(model))


def test_windows_are_masks_of_their_own(load):
    """Layers of one window share a mask, named after it."""
    model = graph_of(load, "gemma3-window")
    assert {"mask", "mask:6"} == {name for name in inputs_of(model) if "mask" in name}
    assert {10000.0, 1e6} == {c.rope.freq_base for c in model.cache_ropes}


@pytest.mark.parametrize(("layers", "width"), [(62, 4), (61, 2)])
def test_the_largest_gemma3_is_scaled_by_its_width(load, write, layers, width):
    """With 62 layers (27B) attention is scaled by the width's share of a head, not its size."""
    shapes = {"attn_q": (2, 4), "attn_k": (2, 4), "attn_v": (2, 4), "attn_output": (4, 2)}
    shapes |= {"ffn_gate": (2, 4), "ffn_up": (2, 4), "ffn_down": (4, 2)}
    shapes |= {"attn_q_norm": (2,), "attn_k_norm": (2,), "attn_norm": (4,), "ffn_norm": (4,)}
    shapes |= {"post_attention_norm": (4,), "post_ffw_norm": (4,)}
    names = {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in shapes.items()}
    names |= {"token_embd": (3, 4), "output_norm": (4,)}
    keys = {"block_count": layers, "embedding_length": 4, "feed_forward_length": 2}
    keys |= {"attention.head_count": 1, "attention.key_length": 2, "attention.value_length": 2}
    path = write(
        {"general.architecture": "gemma3"} | {f"gemma3.{k}": v for k, v in keys.items()},
        {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in names.items()},
    )
    nodes = graph_of(load, path).graph.nodes
    scales = {n.attrs["scale"] for n in nodes if n.op and n.op.name == "kv_attention"}
    assert {width**-0.5} == scales


@pytest.mark.parametrize(
    ("name", "learned"), [("gpt2", True), ("bert", True), ("llama", False)]
)
def test_learned_positions(load, name, learned):
    """A model with learned positions says so: it has none beyond, and keys cannot be moved."""
    definition = load(name).definition
    assert learned == definition.hparams.learned_positions
    if name == "gpt2":
        assert graph_of(load, name).cache_ropes == ()
        assert definition.hparams.n_ctx_train == 256

"""What files of one architecture may have or leave out: heads, biases, ties, scalings."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.errors import ModelFormatError, UnsupportedModelError

IDS = np.random.default_rng(8).integers(3, 60, 20)

UNSCALED = {"rope.scaling.type": "none"}
IGNORED = [  # what an implementation could leave out
    ("qwen2-yarn", UNSCALED, {}),
    ("qwen2-yarn", {"rope.scaling.type": "linear"}, {}),
    ("qwen2-yarn-factor", {"rope.scaling.yarn_attn_factor": None}, {}),
    ("qwen2-yarn-factor", {"rope.scaling.yarn_beta_fast": 32.0}, {}),
    ("qwen2-yarn-factor", {"rope.scaling.yarn_beta_slow": 1.0}, {}),
    ("qwen2-yarn-factor", {"rope.scaling.original_context_length": 256}, {}),
    ("qwen2-yarn-factor", {"rope.scaling.yarn_ext_factor": 0.5}, {}),
    ("llama-linear", UNSCALED, {}),
    ("llama-llama3", {}, {"rope_freqs.weight": None}),
    ("phi3-partial", {"rope.dimension_count": 16}, {}),
    ("phi3-window", {"attention.sliding_window": 0}, {}),
    ("phi3-longrope", {"rope.scaling.attn_factor": None}, {}),
    ("gemma3-window", {"attention.sliding_window": 0}, {}),
    ("gemma3-window", {"attention.sliding_window_pattern": 2}, {}),
    ("gemma3-window", {"rope.freq_base_swa": 1e6}, {}),
    ("gemma3-window", UNSCALED, {}),
    ("olmo3", UNSCALED, {}),
    ("olmo3", {"attention.sliding_window_pattern": None, "attention.sliding_window": 0}, {}),
    ("falcon-mamba", {"ssm.dt_b_c_rms": False}, {}),
    ("granite", {"embedding_scale": None}, {}),
    ("granite", {"residual_scale": None}, {}),
    ("granite", {"attention.scale": None}, {}),
    ("granite", {"rope.scaling.finetuned": False}, {}),
    ("qwen2", {}, {"blk.0.attn_q.bias": None}),
]


@pytest.mark.parametrize(("name", "keys", "tensors"), IGNORED)
def test_the_oracles_would_tell(load, oracle, rewrite, name, keys, tensors):
    """Whoever ignored the feature would be far from the reference."""
    data = oracle(name)
    expected = data["ref"] if "ref" in data else data["ref_long"]
    actual = load(rewrite(name, keys, tensors)).whole(data["ids"])
    assert np.abs(actual - expected).max() > 1e-3


SAME = [  # two ways to write one model
    ("llama", {"rope.freq_base": None}, {}),
    ("llama", {"attention.head_count_kv": [4, 4]}, {}),
    ("llama", {"attention.head_count": [8, 8], "feed_forward_length": [176, 176]}, {}),
    ("llama", {"attention.key_length": None, "attention.value_length": None}, {}),
    ("llama", {"context_length": None, "vocab_size": None}, {}),
    ("llama", {"rope.dimension_count": None}, {}),
    ("llama", {}, {"rope_freqs.weight": np.ones(4, np.float32)}),
    ("llama-linear", {"rope.scaling.type": None}, {}),
    ("llama-linear", {"rope.scaling.factor": None, "rope.scale_linear": 4.0}, {}),
    ("gemma3-window", {"attention.sliding_window_pattern": 6}, {}),
    ("gemma3-window", {"attention.sliding_window_pattern": [True] * 5 + [False, True]}, {}),
    ("gemma3-window", {"rope.freq_base_swa": None}, {}),
    ("gemma3", {"attention.scale": 16**-0.5}, {}),
    ("olmo3", {"attention.sliding_window_pattern": None}, {}),
    ("qwen3moe", {"feed_forward_length": 24, "expert_feed_forward_length": None}, {}),
    ("mamba2", {"ssm.group_count": None}, {}),
    ("bert", {"attention.head_count_kv": 4}, {}),
]


@pytest.mark.parametrize(("name", "keys", "tensors"), SAME)
def test_optional_keys(load, rewrite, name, keys, tensors):
    """A missing key means its default, and a number for all layers is that of each."""
    expected = load(name).whole(IDS)
    actual = load(rewrite(name, keys, tensors)).whole(IDS)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("name", "layers"), [("gemma3-window", 7), ("olmo3", 4)])
def test_layers_without_a_window(load, rewrite, name, layers):
    """Where the file names no window no layer has one, and all turn in the scaled way."""
    everywhere = {"attention.sliding_window_pattern": [False] * layers}
    expected = load(rewrite(name, everywhere)).whole(IDS)
    for pattern in ({}, {"attention.sliding_window_pattern": None}):
        actual = load(rewrite(name, {"attention.sliding_window": None, **pattern})).whole(IDS)
        np.testing.assert_array_equal(actual, expected)


TIED = ["llama", "qwen2", "qwen3", "gpt2", "llama-e256-Q8_0", "llama-e256-Q4_0"]


@pytest.mark.parametrize("name", TIED)
def test_tied_embeddings(load, rewrite, name):
    """Without an output head the embedding is the head, quantised or not."""
    tied = load(rewrite(name, tensors={"output.weight": None})).whole(IDS)
    twin = load(rewrite(name, tensors={"output.weight": "token_embd.weight"})).whole(IDS)
    np.testing.assert_array_equal(tied, twin)


def test_frequency_factors_change_distant_positions(load, rewrite):
    """Llama 3.1's factors leave the first token as it is and change what is far from it."""
    ids = np.random.default_rng(9).integers(3, 500, 101)
    slow = rewrite("llama", tensors={"rope_freqs.weight": np.full(4, 8, np.float32)})
    plain, slowed = load("llama").whole(ids), load(slow).whole(ids)
    np.testing.assert_array_equal(plain[0], slowed[0])
    assert np.abs(plain[100] - slowed[100]).max() > 1e-2


@pytest.mark.parametrize("name", ["gemma3-window", "olmo3"])
def test_frequency_factors_leave_windows_alone(load, rewrite, name):
    """What stretches the frequencies is, as all scaling, for layers that see everything."""
    windows = {"attention.sliding_window_pattern": 0}
    factors = {"rope_freqs.weight": np.full(4, 3, np.float32)}
    for keys, same in ((windows, True), ({}, False)):
        plain = load(rewrite(name, keys)).whole(IDS)
        actual = load(rewrite(name, keys, factors)).whole(IDS)
        assert np.array_equal(actual, plain) is same


def fused(file, i, names):
    return np.concatenate([file.array(f"blk.{i}.{name}.weight") for name in names])


def test_fused_matrices(load, rewrite):
    """q, k and v, or gate and up, may be one tensor each in any architecture."""
    file = load("llama").definition.file
    changes: dict[str, object] = {}
    for i in range(2):
        changes |= {
            f"blk.{i}.{n}.weight": None for n in ("attn_q", "attn_k", "attn_v", "ffn_gate")
        }
        changes[f"blk.{i}.attn_qkv.weight"] = fused(file, i, ("attn_q", "attn_k", "attn_v"))
        changes[f"blk.{i}.ffn_up.weight"] = fused(file, i, ("ffn_gate", "ffn_up"))
    expected = load("llama").whole(IDS)
    actual = load(rewrite("llama", tensors=changes)).whole(IDS)
    assert np.abs(actual - expected).max() <= 1e-5


def test_a_mixture_in_llamas_blocks(load, rewrite):
    """Mixtral is a llama with experts: where those that are chosen are equal, it is llama."""
    file, width = load("llama").definition.file, 64
    changes: dict[str, object] = {}
    for i in range(2):
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            one = file.array(f"blk.{i}.{name}.weight")
            changes[f"blk.{i}.{name}.weight"] = None
            changes[f"blk.{i}.{name}_exps.weight"] = np.stack((one, one, -one))
        changes[f"blk.{i}.ffn_gate_inp.weight"] = np.zeros((3, width), np.float32)
    keys = {"expert_count": 3, "expert_used_count": 2}
    expected = load("llama").whole(IDS)
    actual = load(rewrite("llama", keys, changes)).whole(IDS)
    assert np.abs(actual - expected).max() <= 1e-5
    other = load(rewrite("llama", keys | {"expert_used_count": 3}, changes)).whole(IDS)
    assert np.abs(other - expected).max() > 1e-2


def test_only_the_rows_asked_for(load):
    """Logits come for the rows of `out_ids` only, in their order."""
    model = load("llama")
    expected = load("llama").whole(IDS)
    actual = model.step([(model.open(), IDS)], rows=[19, 3])
    assert actual.shape == (2, 512)
    assert np.abs(actual - expected[[19, 3]]).max() <= 1e-5


def test_final_soft_cap(load, rewrite):
    """Gemma's cap on the logits, when a file has one."""
    plain = load("gemma3").whole(IDS)
    capped = load(rewrite("gemma3", {"final_logit_softcapping": 3.0})).whole(IDS)
    assert np.abs(capped - 3 * np.tanh(plain / 3)).max() <= 1e-5


def test_a_window_of_one_sees_only_itself(load, rewrite):
    """With a window of one token no token depends on another."""
    ids = np.concatenate((IDS, IDS[::-1]))
    narrow = load(rewrite("phi3", {"attention.sliding_window": 1})).whole(ids)
    assert np.abs(narrow[:20] - narrow[:19:-1]).max() <= 1e-4


def test_granite_without_positions(load, rewrite):
    """Without rope one layer sees what came before as a set."""
    model = load(rewrite("granite", {"rope.scaling.finetuned": False, "block_count": 1}))
    swapped = np.concatenate((IDS[1::-1], IDS[2:]))
    here, there = model.whole(IDS), model.whole(swapped)
    assert np.abs(here[2:] - there[2:]).max() <= 1e-5


REFUSED = [
    ("llama", {"block_count": None}, {}, "llama.block_count"),
    ("llama", {"embedding_length": None}, {}, "llama.embedding_length"),
    ("llama", {"block_count": 4_000_000_000}, {}, "llama.block_count"),
    ("llama", {"block_count": 3}, {}, "blk.2.attn_norm.weight"),
    ("llama", {"embedding_length": 65}, {}, "token_embd.weight"),
    ("llama", {"attention.head_count": 0}, {}, "heads"),
    ("llama", {"attention.head_count": 0, "attention.key_length": None}, {}, "heads"),
    ("llama", {"attention.head_count": 6}, {}, "heads"),
    ("llama", {"attention.head_count_kv": 3}, {}, "heads"),
    ("llama", {"attention.head_count_kv": 0}, {}, "heads"),
    ("llama", {"attention.head_count_kv": [4]}, {}, "llama.attention.head_count_kv"),
    ("llama", {"attention.head_count_kv": ["4", "4"]}, {}, "llama.attention.head_count_kv"),
    ("llama", {"attention.head_count_kv": "4"}, {}, "llama.attention.head_count_kv"),
    ("llama", {"attention.value_length": 16}, {}, "blk.0.attn_v.weight"),
    ("llama", {"rope.dimension_count": 7}, {}, "llama.rope.dimension_count"),
    ("llama", {"rope.dimension_count": 10}, {}, "llama.rope.dimension_count"),
    ("llama-linear", {"rope.scaling.factor": -2.0}, {}, "llama.rope.scaling.factor"),
    ("llama-linear", {"rope.scaling.factor": float("nan")}, {}, "llama.rope.scaling.factor"),
    ("llama", {}, {"blk.1.ffn_up.weight": None}, "blk.1.ffn_up.weight"),
    ("llama", {}, {"rope_freqs.weight": np.ones(3, np.float32)}, "rope_freqs.weight"),
    ("granite", {"logit_scale": None}, {}, "granite.logit_scale"),
    ("granite", {"logit_scale": 0.0}, {}, "granite.logit_scale"),
    ("gpt2", {"attention.head_count": 0}, {}, "heads"),
    ("gpt2", {"context_length": 128}, {}, "position_embd.weight"),
    ("mamba2", {"ssm.group_count": 0}, {}, "mamba2.ssm.group_count"),
    ("mamba2", {"ssm.time_step_rank": 0}, {}, "mamba2.ssm.time_step_rank"),
    ("mamba", {"ssm.conv_kernel": 0}, {}, "mamba.ssm.conv_kernel"),
    ("mamba", {"ssm.inner_size": None}, {}, "mamba.ssm.inner_size"),
    ("mamba", {"ssm.inner_size": 0}, {}, "mamba.ssm.inner_size"),
    ("lfm2", {"shortconv.l_cache": 0}, {}, "lfm2.shortconv.l_cache"),
    ("qwen3moe", {"expert_used_count": 0}, {}, "qwen3moe.expert_used_count"),
    ("qwen3moe", {"expert_used_count": 7}, {}, "qwen3moe.expert_used_count"),
    ("qwen3moe", {"expert_count": 5}, {}, "blk.0.ffn_gate_inp.weight"),
    ("bert", {}, {"token_embd_norm.bias": np.ones(3, np.float32)}, "token_embd_norm.bias"),
]


@pytest.mark.parametrize(("name", "keys", "tensors", "named"), REFUSED)
def test_contradictory_files(load, rewrite, name, keys, tensors, named):
    """A file that contradicts itself is refused by the name of what is wrong."""
    path = rewrite(name, keys, tensors)
    with pytest.raises(ModelFormatError) as caught:
        load(path).whole(IDS)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


def test_unknown_rope_scaling(load, rewrite):
    """A scaling that is not known is refused, not ignored."""
    model = load(rewrite("llama", {"rope.scaling.type": "spiral"}))
    with pytest.raises(UnsupportedModelError, match="spiral"):
        model.whole(IDS)


@pytest.mark.parametrize(
    ("name", "causal"), [("llama", False), ("mamba", False), ("bert", True)]
)
def test_wrong_direction(load, rewrite, name, causal):
    """A decoder that looks ahead, or an encoder that does not, is refused, not run as usual."""
    path = rewrite(name, {"attention.causal": causal})
    with pytest.raises(UnsupportedModelError, match=r"is of a kind that is not") as caught:
        load(path)
    assert f"{name}.attention.causal {not causal}\n  got: {causal}" in str(caught.value)


@pytest.mark.parametrize(("name", "causal"), [("llama", True), ("bert", None)])
def test_usual_direction(load, rewrite, name, causal):
    """What the architecture is anyway may be said, or left out."""
    expected = load(name).whole(IDS)
    actual = load(rewrite(name, {"attention.causal": causal})).whole(IDS)
    np.testing.assert_array_equal(expected, actual)


def test_not_a_language_model(load, rewrite):
    """A file of a known architecture without an embedding is not a language model."""
    path = rewrite("llama", tensors={"token_embd.weight": None})
    with pytest.raises(UnsupportedModelError, match="no token embedding"):
        load(path)

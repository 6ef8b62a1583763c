"""Which type each tensor gets.

The layers in these tables are those that llama.cpp chose (`llama_model_quantize` of
llama-cpp-python 0.3.36) for random models of the same shape.
"""

from __future__ import annotations

import pytest
from umbel.errors import OptionError
from umbel.gguf.types import BY_NAME
from umbel.tools.quantize.mixtures import MIXTURES, choose, find, find_dtype

NAMES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")
SOME_32 = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
SOME_30 = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]
PLAIN_32 = {"block_count": 32, "attention__head_count": 4, "attention__head_count_kv": 4}
GQA_30 = {"block_count": 30, "attention__head_count": 8, "attention__head_count_kv": 2}
MOE_12 = {"block_count": 12, "expert_count": 8, "attention__head_count": 8}
LARGE_80 = {"block_count": 80, "attention__head_count": 64, "attention__head_count_kv": 8}


def names(layers, suffix=""):
    blocks = [
        f"blk.{i}.{n}{suffix if 'ffn' in n else ''}.weight"
        for i in range(layers)
        for n in NAMES
    ]
    return ["token_embd.weight", "output.weight", *blocks]


def types(file, mixture, output=None):
    choices = choose(file, MIXTURES[mixture], output and BY_NAME[output])
    return {choice.tensor.name: choice.dtype.name for choice in choices}


def layers(chosen, role):
    """Type: layers; all of one type is that type alone."""
    found: dict[str, list[int]] = {}
    for name, dtype in chosen.items():
        if role in name:
            found.setdefault(dtype, []).append(int(name.split(".")[1]))
    return next(iter(found)) if len(found) == 1 else {k: sorted(v) for k, v in found.items()}


@pytest.mark.parametrize(
    ("keys", "mixture", "attn_v", "ffn_down", "attn_output"),
    [
        (PLAIN_32, "Q4_K_M", ("q6_k", SOME_32), ("q6_k", SOME_32), "q4_k"),
        (GQA_30, "Q4_K_M", ("q6_k", SOME_30), ("q6_k", SOME_30), "q4_k"),
        (GQA_30, "Q5_K_M", ("q6_k", SOME_30), ("q6_k", SOME_30), "q5_k"),
        (PLAIN_32, "Q5_K_S", "q5_k", "q5_k", "q5_k"),
        (PLAIN_32, "Q4_K_S", ("q5_k", [0, 1, 2, 3]), ("q5_k", [0, 1, 2, 3]), "q4_k"),
        (GQA_30, "Q4_K_S", ("q5_k", [0, 1, 2, 3]), ("q5_k", [0, 1, 2]), "q4_k"),
        (PLAIN_32, "Q3_K_M", ("q5_k", [0, 1]), ("q5_k", [0, 1]), "q4_k"),
        (GQA_30, "Q3_K_M", ("q5_k", [0, 1]), ("q5_k", [0]), "q4_k"),
        (GQA_30, "Q3_K_S", "q3_k", "q3_k", "q3_k"),
        (GQA_30, "Q3_K_L", "q5_k", "q5_k", "q5_k"),
        (PLAIN_32, "Q2_K", "q3_k", "q3_k", "q3_k"),
        (GQA_30, "Q2_K", "q4_k", "q3_k", "q3_k"),
        (PLAIN_32, "IQ4_XS", "iq4_xs", ("q5_k", [0, 1, 2, 3]), "iq4_xs"),
        (GQA_30, "IQ4_XS", "q5_k", ("q5_k", [0, 1, 2]), "iq4_xs"),
        (GQA_30, "IQ4_NL", "q5_k", ("q5_k", [0, 1, 2]), "iq4_nl"),
        (GQA_30, "IQ3_S", "q4_k", "iq3_s", "iq3_s"),
        (MOE_12, "Q4_K_M", "q8_0", ("q6_k", [0, 3, 6, 9, 10, 11]), "q5_k"),
        (MOE_12, "Q4_K_S", "q8_0", ("q5_k", [0]), "q5_k"),
        (MOE_12, "Q3_K_L", "q8_0", "q5_k", "q3_k"),
        (MOE_12, "Q3_K_M", "q8_0", "q4_k", "q5_k"),
        (MOE_12, "Q4_0", "q8_0", "q4_0", "q4_0"),
        (LARGE_80, "Q4_K_S", "q5_k", ("q5_k", list(range(10))), "q4_k"),
        (LARGE_80, "Q2_K", "q5_k", "q3_k", "q3_k"),
    ],
)
def test_types_by_layer(described, keys, mixture, attn_v, ffn_down, attn_output):
    """The three roles that a mixture treats layer by layer, as llama.cpp does."""
    experts = "_exps" if "expert_count" in keys else ""
    count = keys["block_count"]
    chosen = types(described(names(count, experts), **keys), mixture)

    for role, expected in (("attn_v", attn_v), ("ffn_down", ffn_down)):
        found = layers(chosen, role)
        if isinstance(expected, tuple):
            found = (expected[0], found[expected[0]])
        assert expected == found
    assert attn_output == layers(chosen, "attn_output")
    assert MIXTURES[mixture].most == layers(chosen, "attn_q")
    assert MIXTURES[mixture].most == chosen["token_embd.weight"]
    assert MIXTURES[mixture].output == chosen["output.weight"]


def test_values_of_some_layers(described):
    """Where only some layers have attention (lfm2), the n-th of them is meant."""
    tensors = [f"blk.{i}.attn_v.weight" for i in range(2, 26, 3)]

    chosen = types(described(tensors, "lfm2", block_count=26), "Q4_K_M")

    assert layers(chosen, "attn_v") == {"q6_k": [2, 11, 20, 23], "q4_k": [5, 8, 14, 17]}


def test_queries_keys_and_values_in_one(described):
    """attn_qkv counts as attn_v."""
    tensors = [f"blk.{i}.attn_qkv.weight" for i in range(16)]

    chosen = types(described(tensors, "phi3", block_count=16), "Q4_K_M")

    assert layers(chosen, "attn_qkv")["q6_k"] == [0, 1, 4, 7, 10, 13, 14, 15]


def test_heads_of_each_layer(described):
    """The number of heads may be an array; the first layer's counts."""
    heads = {"attention__head_count": [8, 8], "attention__head_count_kv": [2, 8]}

    chosen = types(described(["blk.0.attn_v.weight"], **heads), "Q2_K")

    assert chosen == {"blk.0.attn_v.weight": "q4_k"}


@pytest.mark.parametrize(
    ("mixture", "given", "expected"),
    [
        ("Q4_K_M", None, "q6_k"),
        ("Q4_0", None, "q8_0"),
        ("Q8_0", None, "q8_0"),
        ("F16", None, "f16"),
        ("Q4_K_M", "q8_0", "q8_0"),
        ("Q4_0", "q6_k", "q6_k"),
        ("Q4_0", "f16", "f16"),
    ],
)
def test_output(described, mixture, given, expected):
    """The output matrix has a type of its own, and so has an embedding that serves as one."""
    both = types(described(["token_embd.weight", "output.weight"]), mixture, given)
    tied = types(described(["token_embd.weight"]), mixture, given)

    most = MIXTURES[mixture].most
    assert both == {"token_embd.weight": most, "output.weight": expected}
    assert tied == {"token_embd.weight": expected}


@pytest.mark.parametrize(
    ("wanted", "row", "expected"),
    [
        ("Q4_K_S", 576, "q5_0"),
        ("Q5_K_S", 576, "q5_1"),
        ("Q6_K", 576, "q8_0"),
        ("Q3_K_S", 576, "q4_0"),
        ("Q2_K", 576, "q4_0"),
        ("IQ4_XS", 576, "iq4_nl"),
        ("IQ3_S", 576, "iq4_nl"),
        ("Q4_K_S", 48, "f16"),
        ("Q8_0", 48, "f16"),
        ("Q4_0", 1, "f16"),
        ("F16", 1, "f16"),
        ("Q4_K_S", 512, "q4_k"),
    ],
)
def test_rows_that_are_no_whole_blocks(described, wanted, row, expected):
    """A type whose blocks do not divide the rows has one that takes its place, and says so."""
    (choice,) = choose(described({"blk.0.ffn_up.weight": (64, row)}), MIXTURES[wanted])

    assert expected == choice.dtype.name
    assert (expected != MIXTURES[wanted].most) == choice.is_fallback


@pytest.mark.parametrize(
    "name",
    [
        *("blk.0.attn_q_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight"),
        *("blk.0.shortconv.conv.weight", "position_embd.weight", "token_types.weight"),
        *("blk.0.ssm_a", "blk.0.attn_q.bias", "blk.0.attn_q.weight.lora_a"),
    ],
)
def test_what_is_kept(described, name):
    """Norms, routers, convolutions and the like keep their type."""
    (choice,) = choose(described([name]), MIXTURES["Q4_K_M"])

    assert (choice.dtype.name, choice.is_fallback) == ("f32", False)


@pytest.mark.parametrize("shape", [(256,), (1, 256), (), (1, 1, 256), (1, 1)])
def test_one_dimension_is_kept(described, shape):
    """Leading axes of one count for nothing, as in ggml."""
    assert types(described({"rope_freqs.weight": shape}), "Q8_0") == {
        "rope_freqs.weight": "f32"
    }


def test_names_are_found():
    """In any case, and as llama-quantize abbreviates them."""
    assert find("q4_k_m") is find("Q4_K") is MIXTURES["Q4_K_M"]
    assert find_dtype("Q6_K") == BY_NAME["q6_k"]


@pytest.mark.parametrize("bad", ["", "Q4", "IQ2_XXS", "q8_1", "Q4_K_M "])
def test_unknown_names(bad):
    """What there is none of is refused, with all that there are."""
    with pytest.raises(OptionError, match="F32, F16, BF16"):
        find(bad)
    with pytest.raises(OptionError, match="bf16, f16"):
        find_dtype(bad)

"""Configurations: both spellings of transformers, and what cannot be converted."""

from __future__ import annotations

import math

import pytest
from umbel import gguf
from umbel.errors import ModelFormatError, UmbelError, UnsupportedModelError
from umbel.tools.convert import convert


@pytest.fixture
def metadata(make, tmp_path):
    """The metadata of a converted case, changed as a test wants it."""

    def converted(case, **changes):
        out = tmp_path / "out.gguf"
        convert(make(case, **changes), out, force=True)
        with gguf.open(out) as file:
            return dict(file.metadata)

    return converted


# What transformers wrote up to version 4, in the place of `rope_parameters` and others.
OLD = {
    "llama": {"rope_theta": 10000.0, "rope_scaling": None},
    "llama-linear": {"rope_theta": 10000, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama-llama3": {
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen2-yarn-tied": {
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "gemma3": {
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 6,
        "layer_types": None,
    },
    "phi3-longrope": {
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "su",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 3.0, 4.0, 5.0],
        },
        "original_max_position_embeddings": 32,
    },
    "qwen3moe": {"rope_theta": 10000.0, "num_experts": 11, "num_local_experts": None},
    "lfm2": {
        "rope_theta": 1000000.0,
        "layer_types": None,
        "full_attn_idxs": [1],
        "intermediate_size": None,
        "block_ff_dim": 48,
    },
    "phi3-window-partial": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "olmo3": {
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "layer_types": None,
    },
}


@pytest.mark.parametrize("case", OLD)
def test_the_spelling_of_older_versions(make, cases, tmp_path, case):
    """Both give one file, byte for byte."""
    new, old = tmp_path / "new.gguf", tmp_path / "old.gguf"
    folder = make(case)
    convert(folder, new)
    config = cases[case]["config"] | OLD[case] | {"rope_parameters": None}
    make.write(folder, "config.json", config)
    convert(folder, old)
    assert old.read_bytes() == new.read_bytes()


def test_the_first_llamas_had_no_base(metadata):
    """10000 was no key then."""
    assert metadata("llama", rope_parameters=None)["llama.rope.freq_base"] == 10000.0


def test_what_stands_in_the_metadata(metadata):
    """The keys that other readers look for."""
    keys = metadata("llama-bias-tied")
    assert keys["general.architecture"] == "llama"
    assert keys["general.name"] == "llama-bias-tied"
    assert keys["general.file_type"] == 0
    assert keys["llama.vocab_size"] == 64
    assert keys["llama.attention.key_length"] == keys["llama.rope.dimension_count"] == 16
    assert keys["tokenizer.ggml.pre"] == "gpt-2"


def test_yarn_by_its_own_scales(metadata):
    """DeepSeek's mscale and mscale_all_dim together make the factor of the attention."""
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "mscale": 2.0}
    rope |= {"mscale_all_dim": 0.5, "original_max_position_embeddings": 16}
    keys = metadata("qwen2", rope_parameters=rope)
    expected = (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    assert keys["qwen2.rope.scaling.yarn_attn_factor"] == pytest.approx(expected)


def test_the_usual_windows_need_no_key(metadata, make):
    """llama.cpp knows that every sixth layer of Gemma 3 sees everything, and no list."""
    key = "gemma3.attention.sliding_window_pattern"
    assert key not in metadata("gemma3")
    assert metadata("gemma3-capped")[key] == [False, True]


UNSUPPORTED = [
    ("llama", {"architectures": ["FalconForCausalLM"]}),
    ("llama", {"architectures": None}),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}),
    ("llama", {"hidden_act": "gelu"}),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    ("mistral", {"sliding_window": 16}),
    ("qwen2", {"use_sliding_window": True}),
    ("qwen3moe", {"mlp_only_layers": [0]}),
    ("qwen3moe", {"decoder_sparse_step": 2}),
    ("qwen2-yarn-tied", {"rope_parameters": {"rope_type": "yarn", "truncate": False}}),
    ("gpt2", {"activation_function": "relu"}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gemma3", {"attn_logit_softcapping": 50.0}),
    ("gemma3", {"use_bidirectional_attention": True}),
    ("gemma3", {"hidden_activation": None, "hidden_act": "silu"}),
    ("bert", {"position_embedding_type": "relative_key"}),
    ("bert", {"is_decoder": True}),
    ("mamba", {"hidden_act": "gelu"}),
    ("mamba2", {"time_step_limit": [0.0, 0.1]}),
    ("olmo2", {"clip_qkv": 8.0}),
]


@pytest.mark.parametrize(("case", "changes"), UNSUPPORTED, ids=str)
def test_what_would_change_the_result_is_refused(make, tmp_path, case, changes):
    """The key is named with what it holds; nothing is written."""
    rope = changes.get("rope_parameters")
    if rope:
        rope |= {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    folder = make(case, **changes)
    with pytest.raises(UnsupportedModelError) as info:
        convert(folder, tmp_path / "out.gguf")
    assert str(folder) in str(info.value.where)
    assert not (tmp_path / "out.gguf").exists()


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0}
LONG |= {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
MALFORMED = [
    {"num_hidden_layers": "2"},
    {"num_hidden_layers": 3},  # the tensors of a layer are missing
    {"num_hidden_layers": 1},  # those of another are of no use
    {"num_hidden_layers": None},
    {"num_hidden_layers": True},
    {"num_attention_heads": 0},
    {"num_attention_heads": 3},
    {"num_key_value_heads": 4},
    {"head_dim": 7},
    {"hidden_size": 33},
    {"hidden_size": 2**40},
    {"intermediate_size": -1},
    {"rms_norm_eps": "small"},
    {"rms_norm_eps": float("nan")},
    {"max_position_embeddings": 1.5},
    {"rope_parameters": []},
    {"rope_parameters": {"rope_type": "default"}},
    {"rope_parameters": {"rope_type": 5, "rope_theta": 1e4}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}},
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": -1e4}},
    {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 0}},
    {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": -10 / math.log(4)}},
    {"rope_parameters": LONG | {"original_max_position_embeddings": 1}},
    {"partial_rotary_factor": -1.0},
    {"partial_rotary_factor": 1e30},
    {"rms_norm_eps": 1e300},
    {"tie_word_embeddings": "yes"},
]


@pytest.mark.parametrize("changes", MALFORMED, ids=str)
def test_a_configuration_that_does_not_fit(make, tmp_path, changes):
    """One typed error; nothing is written, not even beside the place."""
    folder = make("llama", **changes)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UmbelError):
        convert(folder, tmp_path / "out.gguf")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kinds", [["conv"], ["conv", "linear_attention"], [["conv"], "conv"]])
def test_layer_types_must_be_known(make, tmp_path, kinds):
    """One kind for each layer."""
    with pytest.raises(ModelFormatError, match="layer_types"):
        convert(make("lfm2", layer_types=kinds), tmp_path / "out.gguf")


def test_falcon_mamba_with_two_epsilons_is_told(metadata, caplog):
    """GGUF has one; the difference is far below rounding, and is said."""
    metadata("falcon-mamba", mixer_rms_eps=1e-6)
    assert "mixer_rms_eps" in caplog.text


POOLING = "1_Pooling/config.json"


@pytest.mark.parametrize(
    ("modes", "number"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        ({"pooling_mode_cls_token": True}, 2),
        ({"pooling_mode_lasttoken": True}, 3),
        ({"pooling_mode": "mean"}, 1),
    ],
    ids=str,
)
def test_how_hidden_states_are_pooled(make, tmp_path, modes, number):
    """sentence-transformers says it in a file of its own."""
    folder = make("bert")
    make.write(folder, POOLING, {"word_embedding_dimension": 32, **modes})
    convert(folder, tmp_path / "out.gguf")
    with gguf.open(tmp_path / "out.gguf") as file:
        assert file.metadata["bert.pooling_type"] == number


@pytest.mark.parametrize(
    "modes",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode_mean_tokens": False},
    ],
    ids=str,
)
def test_other_ways_of_pooling_are_refused(make, tmp_path, modes):
    """The vectors would be others."""
    folder = make("bert")
    make.write(folder, POOLING, modes)
    with pytest.raises(UnsupportedModelError, match="pooling"):
        convert(folder, tmp_path / "out.gguf")


def test_parts_after_pooling_are_refused(make, tmp_path):
    """A dense layer on top would be lost."""
    folder = make("bert")
    modules = '[{"type": "sentence_transformers.models.Pooling"}, {"type": "a.models.Dense"}]'
    (folder / "modules.json").write_text(modules)
    with pytest.raises(UnsupportedModelError) as info:
        convert(folder, tmp_path / "out.gguf")
    assert info.value.got == "Dense"


def test_the_licence_of_the_readme(make, tmp_path):
    """As the head of the file names it."""
    folder = make("llama")
    (folder / "README.md").write_text(
        "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n"
    )
    convert(folder, tmp_path / "out.gguf")
    with gguf.open(tmp_path / "out.gguf") as file:
        assert file.metadata["general.license"] == "apache-2.0"

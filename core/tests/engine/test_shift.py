"""Keys that are turned to new positions, against two computations of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from umbel import gguf
from umbel.state import Sequence

KEEP, LENGTH, DROPPED = 4, 24, 10
MODELS = [
    "llama",
    "qwen2",
    "gemma3",
    "gemma3-window",
    "phi3-partial",
    "phi3-longrope",
    "llama-linear",
    "llama-llama3",
    "qwen2-yarn",
    "qwen2-yarn-factor",
    "olmo3",
    "granite",
]


def rows(runner, name, sequence):
    """The values of the sequence's cells: (tokens, heads, head_dim)."""
    tensor = runner.states.tensors[name]
    data = runner.states.read_rows(name, sequence.cells)
    if tensor.dtype.numpy is None:
        values = gguf.types.dequantise(data, tensor.dtype)
    else:
        values = data.view(tensor.dtype.numpy).astype(np.float32)
    return values.reshape(len(sequence), -1, runner.definition.hparams.head_dim_k)


def frequencies(runner, layer):
    """The angle of each pair for one position, and whether halves are pairs."""
    entry = runner.cache_ropes[layer]
    rope, n = entry.rope, entry.rope.n_dims
    base = [rope.freq_base ** (-2 * i / n) for i in range(n // 2)]
    out = []
    for i, plain in enumerate(base):
        angle = plain * rope.freq_scale
        if rope.ext_factor:  # YaRN: fast pairs are left alone, slow ones are stretched
            low, high = (
                n
                * math.log(rope.n_ctx_orig / (b * 2 * math.pi))
                / (2 * math.log(rope.freq_base))
                for b in (rope.beta_fast, rope.beta_slow)
            )
            low, high = max(0, math.floor(low)), min(n - 1, math.ceil(high))
            slow = min(1, max(0, (i - low) / max(0.001, high - low)))
            angle = plain * rope.freq_scale * slow + plain * (1 - slow)
        out.append(angle)
    factors = np.ones(n // 2)
    if entry.factors is not None:
        factors = runner.definition.file.array(entry.factors.name)
    return np.array(out) / factors, rope.mode == "neox"


def turned(keys, angle, halves, by):
    """Complex numbers, turned."""
    n = len(angle)
    one, two = (
        (slice(0, n), slice(n, 2 * n)) if halves else (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
    )
    pairs = (keys[..., one] + 1j * keys[..., two]) * np.exp(1j * by * angle)
    out = keys.copy()
    out[..., one], out[..., two] = pairs.real, pairs.imag
    return out


def filled(runner):
    n_vocab = runner.definition.hparams.n_vocab
    sequence = Sequence()
    ids = np.random.default_rng(1).integers(0, n_vocab, LENGTH).tolist()
    runner.forward(sequence, ids)
    return sequence, ids


CASES = [
    *((name, "f32") for name in MODELS),
    ("llama", "f16"),
    ("qwen2-yarn", "f16"),
    ("llama", "q8_0"),
    ("gemma3", "q8_0"),
]


@pytest.mark.parametrize(("name", "kv"), CASES)
def test_shifted_keys_are_turned_keys(open_runner, name, kv):
    """In every layer: the rotation in NumPy of what was there; values stay as they are."""
    runner = open_runner(name, kv=kv)
    sequence, ids = filled(runner)
    layers = range(len(runner.cache_ropes))
    before = [
        (rows(runner, f"k_cache.{i}", sequence), rows(runner, f"v_cache.{i}", sequence))
        for i in layers
    ]
    assert DROPPED == runner.shift(sequence, KEEP)
    assert ids[:KEEP] + ids[KEEP + DROPPED :] == sequence.tokens
    bound = {"f32": 1e-6, "f16": 1e-3, "q8_0": 2e-2}[kv]
    for i, (keys, values) in enumerate(before):
        expected = np.delete(keys, range(KEEP, KEEP + DROPPED), axis=0)
        expected[KEEP:] = turned(expected[KEEP:], *frequencies(runner, i), -DROPPED)
        actual = rows(runner, f"k_cache.{i}", sequence)
        assert np.abs(expected - actual).max() <= bound * np.abs(expected).max()
        kept = np.delete(values, range(KEEP, KEEP + DROPPED), axis=0)
        assert np.array_equal(kept, rows(runner, f"v_cache.{i}", sequence))


@pytest.mark.parametrize("name", MODELS)
def test_keys_of_the_first_layer_are_those_of_a_cold_prefill(open_runner, name):
    """They depend on token and position alone, so that the whole chain can be seen there."""
    runner = open_runner(name)
    sequence, _ = filled(runner)
    runner.shift(sequence, KEEP)
    cold = Sequence()
    runner.forward(cold, list(sequence.tokens))
    expected = rows(runner, "k_cache.0", cold)
    actual = rows(runner, "k_cache.0", sequence)
    assert np.abs(expected - actual).max() <= 2e-6 * np.abs(expected).max()

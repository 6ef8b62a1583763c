"""Whole models: the results of an independent implementation (core/tests/data/oracles), and the
same bits however they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
import umbel
from umbel.models import StepShape
from umbel.runner import Runner
from umbel.state import Sequence
from umbel_kit.compare import nmse
from umbel_kit.simulated import as_weights, logits
from umbel_numa.library import variants

KERNELS = [name for name, runs in variants().items() if runs]
DECODERS = ["gemma3", "gpt2", "granite", "lfm2", "llama", "mamba", "mamba2", "olmo2", "phi3"]
DECODERS += ["qwen2", "qwen3", "qwen3moe"]
FEATURES = ["falcon-mamba", "gemma3-window", "llama-linear", "llama-llama3", "olmo3"]
FEATURES += ["phi3-partial", "phi3-window", "qwen2-yarn", "qwen2-yarn-factor", "qwen3-wide"]
KINDS = ["Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0", "Q3_K", "Q2_K", "IQ4_XS"]
QUANTISED = [f"llama-e256-{kind}" for kind in KINDS]
# Rounding keys and values to float16 moves each by 2^-11 of it at most, in every layer; softmax
# and norms do not amplify it.
HALF = 2 * 2.0**-11


def whole(runner: Runner, ids: list[int]) -> np.ndarray:
    """The results of all tokens of a text in one step."""
    sequence = Sequence()
    made = runner.forward(sequence, ids, every=True)
    runner.cache.close(sequence)
    return made


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """To the bit."""
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


def size(differences: np.ndarray) -> float:
    return float(np.abs(differences).max())


# against others


@pytest.mark.parametrize("name", [*DECODERS, *FEATURES])
def test_logits(load, oracle, name) -> None:
    """Those of an independent implementation: with keys and values in float32 to rounding, in
    float16 to theirs."""
    data = oracle(name)
    ids, expected = data["ids"].tolist(), data["ref"]
    bound = 2e-4 if name in ("mamba", "mamba2") else 1e-4  # as of the references of the core
    assert size(whole(load(name, kv="f32"), ids) - expected) <= bound
    runner = load(name)
    rounding = HALF * runner.definition.hparams.n_layer * size(expected)
    assert size(whole(runner, ids) - expected) <= rounding + bound


def test_longrope(load, oracle) -> None:
    """Its long factors, and the short ones."""
    data = oracle("phi3-longrope")
    for ctx, key in ((128, "ref_long"), (32, "ref_short")):
        ids = data["ids"][: len(data[key])].tolist()
        runner = load("phi3-longrope", ctx=ctx, kv="f32")
        assert size(whole(runner, ids) - data[key]) <= 1e-4


@pytest.mark.parametrize("precise", [False, True])
def test_an_encoder(load, oracle, precise) -> None:
    """Its hidden states; two texts of one step each get their own."""
    data = oracle("bert")
    runner = load("bert", precise=precise)
    ids = data["ids"].tolist()
    (hidden,) = runner.hidden([ids])
    assert size(hidden - data["ref"]) <= 1e-4
    for got in runner.hidden([ids, ids]):
        same(got, hidden)
    same(runner.hidden([ids, ids[::-1]])[1], runner.hidden([ids[::-1]])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_weights(load, oracle, kind) -> None:
    """Precise: the logits of the dequantised weights. Else what rounding activations to 8 bits
    costs, and no more, to which a simulation of it in NumPy comes far nearer."""
    name, data = f"llama-e256-{kind}", oracle("llama-e256")
    ids, expected = data["ids"].tolist(), data[kind]
    assert size(whole(load(name, precise=True, kv="f32"), ids) - expected) <= 1e-4
    runner = load(name)
    actual = whole(runner, ids)
    simulated = logits(runner, ids, as_weights)
    cost = nmse(expected, simulated)
    assert 1e-6 < cost < 1e-3
    assert nmse(expected, actual) < 1.5 * cost
    assert nmse(simulated, actual) < cost / 8  # where a value stood between two integers


def test_a_story(load) -> None:
    """A trained model writes what its author shows, also with 8-bit keys and values."""
    said = " Once upon a time, there was a little girl named Lily."
    for settings in ({}, {"precise": True, "kv": "f32"}):
        runner = load("stories260K", **settings)
        pieces = runner.definition.file.get("tokenizer.ggml.tokens", list)
        sequence, token, text = Sequence(), 1, ""
        while len(text) < len(said):
            token = int(runner.forward(sequence, [token]).argmax())
            text += pieces[token].replace("\u2581", " ")
        assert text == said


# one split


@pytest.mark.parametrize("name", ["bert", "stories260K", *DECODERS, *FEATURES, *QUANTISED])
def test_one_split(load, name) -> None:
    """Nothing of a model is left to the host, and all of it is one call."""
    runner = load(name)
    shapes = [StepShape(1, 1, 32, 1), StepShape(7, 1, 32, 7), StepShape(1, 3, 32, 3)]
    for shape in shapes[1:2] if runner.encodes else shapes:
        plan = runner.plan(runner.padded(shape))
        assert [step.target.name for step in plan.steps] == ["numa:0"]
        assert not runner.elsewhere(plan)


# the same bits

SAME = [*DECODERS, "gemma3-window", "phi3-window", "olmo3", "falcon-mamba", "stories260K"]
SAME += ["llama-e256-Q8_0", "llama-e256-Q4_K", "llama-e256-Q4_0", "llama-e256-IQ4_XS"]


def text(runner: Runner, n: int = 24, seed: int = 5) -> list[int]:
    vocabulary = runner.definition.hparams.n_vocab
    return np.random.default_rng(seed).integers(3, vocabulary, n).tolist()


def pieces(runner: Runner, ids: list[int], lengths: list[int]) -> np.ndarray:
    """The results of a text that comes piece by piece."""
    sequence, rows = Sequence(), []
    for n in lengths:
        rows.append(runner.forward(sequence, ids[:n], every=True))
        ids = ids[n:]
    runner.cache.close(sequence)
    return np.concatenate(rows)


@pytest.mark.parametrize("name", SAME)
def test_pieces(load, name) -> None:
    """At once, in pieces, one by one."""
    runner = load(name)
    ids = text(runner)
    expected = whole(runner, ids)
    same(pieces(runner, ids, [1] * 24), expected)
    same(pieces(runner, ids, [5, 16, 1, 2]), expected)
    same(pieces(load(name, ubatch=7), ids, [24]), expected)


@pytest.mark.parametrize("name", ["bert", "gemma3-window", "llama-e256-Q4_K", "qwen3"])
def test_texts_beside(load, monkeypatch, name) -> None:
    """Hidden states of texts that are padded and share a step, and of each as it is."""
    runner = load(name)
    texts = [text(runner, n, seed=n) for n in (24, 20, 17, 16)]
    made = runner.hidden(texts)
    monkeypatch.setattr("umbel.runner.ENCODED", 1)
    for ids, states in zip(texts, made, strict=True):
        same(states, runner.hidden([ids])[0])


@pytest.mark.parametrize("name", SAME)
def test_sequences_beside(load, name) -> None:
    """One of 2 and of 8, all of different lengths; and a fork that goes another way."""
    runner = load(name)
    ids = text(runner)
    expected = whole(runner, ids)
    for count in (2, 8):
        sequences = [Sequence() for _ in range(count)]
        for i, sequence in enumerate(sequences):
            runner.forward(sequence, ids[: 8 + (i and 2 * i - 1)])
        for k in range(6):
            tokens = [ids[8 + k], *text(runner, count - 1, seed=k)]
            same(runner.decode(sequences, tokens)[0], expected[8 + k])
        for sequence in sequences:
            runner.cache.close(sequence)
    sequence = Sequence()
    runner.forward(sequence, ids[:9])
    fork = runner.cache.fork(sequence)
    runner.forward(fork, ids[:4])
    for k in range(9, 14):
        rows = runner.decode([fork, sequence], [ids[k - 9], ids[k]])
        same(rows[1], expected[k])
    runner.cache.close(fork)
    runner.cache.close(sequence)


@pytest.mark.parametrize("name", SAME)
def test_threads_and_kernels(load, name) -> None:
    """Whichever compute it; one by one too, where steps share their work otherwise."""
    first = load(name, threads=1, kernels=KERNELS[0])
    ids = text(first)
    expected = whole(first, ids)
    for threads, kernels in enumerate([*KERNELS, KERNELS[0]], 1):
        runner = load(name, threads=threads % 4 + 1, kernels=kernels)
        same(whole(runner, ids), expected)
        same(pieces(runner, ids, [20, 1, 1, 1, 1]), expected)


@pytest.mark.parametrize("kv", ["f32", "q8_0"])
@pytest.mark.parametrize("name", ["llama", "llama-e256-Q4_K", "phi3"])
def test_caches(load, name, kv) -> None:
    """Keys and values of each kind, precise or not, on all kernels."""
    for precise in (False, True):
        one = load(name, kv=kv, precise=precise, kernels=KERNELS[0])
        ids = text(one)
        expected = whole(one, ids)
        same(pieces(one, ids, [3, 17, 1, 1, 1, 1]), expected)
        for kernels in KERNELS[1:]:
            other = load(name, kv=kv, precise=precise, kernels=kernels, threads=3)
            same(whole(other, ids), expected)


@pytest.mark.parametrize("name", ["llama-e256-Q4_K", "llama", "qwen3moe"])
def test_long_contexts(load, name) -> None:
    """Threads share a sequence's cells from some length on: the same bits as one thread."""
    one, three = (load(name, threads=n, ctx=640, parallel=2) for n in (1, 3))
    ids = text(one, 600)
    expected = whole(one, ids)
    same(whole(three, ids), expected)
    same(pieces(three, ids, [598, 1, 1])[-2:], expected[-2:])


def test_adapters_beside(load, oracle, oracles) -> None:
    """A sequence with an adapter beside it, and room for more, change no bit of one without;
    nor is the adapted one's result another beside others."""
    data, ids = oracle("llama-lora"), oracle("llama-lora")["ids"].tolist()
    expected = whole(load("llama"), ids)
    room = {"adapter_slots": 2, "adapter_rank": 4}
    with umbel.load(oracles / "llama.gguf", "numa", ctx=64, parallel=2, **room) as model:
        model.load_adapter(oracles / "llama-lora.gguf", "lora")
        same(model.logits(ids, adapters=None), expected)
        adapted = model.logits(ids, adapters="lora")
        assert size(adapted - data["ref"]) <= 2 * HALF * size(adapted)

        def work() -> list[np.ndarray]:
            one, two = Sequence(), Sequence(adapters=model.mix("lora"))
            for sequence in (one, two):
                model.runner.forward(sequence, ids[:9])
            return [model.runner.decode([two, one], [i, i]) for i in ids[9:]]

        rows = np.stack(model.engine.call(work))
        same(rows[:, 1], expected[9:])
        same(rows[:, 0], adapted[9:])

"""What `generate` is asked for, and what it answers."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import umbel
from umbel.errors import (
    ContextFullError,
    OptionError,
    SamplingError,
    TokenizerError,
    UmbelError,
)
from umbel.sampling import Settings

PROMPT = [1, 100, 200, 300, 17]


def greedy(model, prompt, n):
    """The best token of the logits, again and again, by whole texts."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(model.logits(ids)[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mamba", "mamba2", "lfm2", "gemma3", "phi3"])
def test_a_greedy_answer_is_the_best_token_again_and_again(shared, name):
    """Cache, state and batches change nothing."""
    model = shared(name)
    generation = model.generate(PROMPT, max_tokens=12, temperature=0, logit_bias={2: -99.0})
    generation.read()
    expected = greedy(model, PROMPT, 12)
    n = next((i for i, t in enumerate(expected) if t in model.tokenizer.vocab.ends), 12)
    assert expected[:n] == generation.tokens[:n]


def test_the_figures_of_an_answer(shared):
    """Everything is told: counts, the reason, the times, the seed."""
    model = shared("gpt2")
    with model.generate(PROMPT, max_tokens=5, temperature=0) as generation:
        pieces = list(generation)
    assert "".join(pieces) == generation.text == model.detokenize(generation.tokens)
    assert (5, 5, "length") == (
        generation.prompt_tokens,
        len(generation.tokens),
        generation.finish_reason,
    )
    assert generation.prefill_seconds > 0
    assert generation.decode_seconds > 0
    assert 0 <= generation.seed < 2**32
    assert [] == list(generation)


@pytest.mark.parametrize("value", [-1, -2, -(2**31), 2**63, 1e308, math.nan, True, "5", 1.0])
@pytest.mark.parametrize("name", ["max_tokens", "keep", "logprobs", "top_k", "seed"])
def test_numbers_that_are_none_are_refused_at_once(shared, name, value):
    """S06, V08: with the field's name, before anything runs."""
    if name == "top_k" and value == -1:
        return
    with pytest.raises((OptionError, SamplingError)) as caught:
        shared("llama").generate(PROMPT, **{name: value})
    assert name == caught.value.where


def test_max_tokens(scripted):
    """S06: None goes on to the end of the context; 0 gives nothing; each with its reason."""
    model, _ = scripted(endless=True, ctx=64)
    for value, expected in ((None, 54), (0, 0), (1, 1), (10**6, 54)):
        generation = model.generate([65] * 10, max_tokens=value, temperature=0)
        assert expected == len(generation.read())
        assert (expected, "length") == (len(generation.tokens), generation.finish_reason)


@pytest.mark.parametrize(("n", "expected"), [(198, 2), (199, 1)])
def test_the_edge_of_the_context(scripted, n, expected):
    """V07: prompt and answer are as long as the context together."""
    model, _ = scripted(endless=True, ctx=200)
    generation = model.generate([65] * n, max_tokens=1024, temperature=0)
    assert expected == len(generation.read())
    assert "length" == generation.finish_reason


@pytest.mark.parametrize("n", [200, 201])
def test_a_prompt_that_leaves_no_room_is_refused(scripted, n):
    """V07: both numbers are told."""
    model, _ = scripted(endless=True, ctx=200)
    with pytest.raises(ContextFullError) as caught:
        model.generate([65] * n, max_tokens=1024)
    assert str(n) in caught.value.got
    assert "200" in caught.value.what
    assert "199" in caught.value.expected
    if n == 200:
        assert "" == model.generate([65] * n, max_tokens=0).read()
    with pytest.raises(ContextFullError):
        model.logits([65] * 201)


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([], OptionError),
        ([10**9], TokenizerError),
        ([512], TokenizerError),
        ([1, -1], TokenizerError),
        (["a", "b"], TokenizerError),
        ([[1, 2]], TokenizerError),
        ([1.5], TokenizerError),
        ("\ud83d", TokenizerError),
        (None, UmbelError),
        (7, UmbelError),
    ],
)
def test_prompts_that_are_none(shared, prompt, error):
    """V10: each is one typed error; no index wraps around."""
    with pytest.raises(error):
        shared("llama").generate(prompt)
    with pytest.raises(error):
        shared("llama").logits(prompt)


def test_an_empty_text_begins_with_bos(shared):
    """V10: where the model has one, also if it does not put it before other texts."""
    assert 1 == shared("llama").generate("", max_tokens=1).prompt_tokens
    assert 1 == shared("gpt2").generate("", max_tokens=1).prompt_tokens


def test_an_empty_text_without_bos(rewrite, load):
    """V10: then there is nothing to begin with."""
    path = rewrite("gpt2", {"tokenizer.ggml.bos_token_id": None})
    with pytest.raises(OptionError, match="empty"):
        load(path).generate("")


def test_numpy_ids_and_bytes_are_prompts(shared):
    """Ids may come in any sequence; bytes are text."""
    model = shared("llama")
    answers = [
        model.generate(p, max_tokens=4, temperature=0).read()
        for p in (PROMPT, np.array(PROMPT))
    ]
    assert answers[0] == answers[1]
    texts = [
        model.generate(p, max_tokens=4, temperature=0).read()
        for p in ("héllo", "héllo".encode())
    ]
    assert texts[0] == texts[1]


def test_unknown_settings_are_refused(shared):
    """A typo never becomes a default."""
    with pytest.raises(OptionError) as caught:
        shared("llama").generate(PROMPT, temprature=0)
    assert "temprature" == caught.value.got
    assert "temperature" in caught.value.expected


def test_settings_as_one_object(shared):
    """Single fields given beside it change it."""
    model = shared("llama")
    fixed = Settings(temperature=0)
    one = model.generate(PROMPT, sampling=fixed, max_tokens=6)
    assert one.read() == model.generate(PROMPT, temperature=0, max_tokens=6).read()
    best = one.tokens[0]
    other = model.generate(PROMPT, sampling=fixed, logit_bias={best: -99.0}, max_tokens=1)
    other.read()
    assert best != other.tokens[0]


def test_log_probabilities(shared):
    """Those of the logits as they are; 0 tells the chosen token's only."""
    model = shared("llama")
    for n in (0, 3):
        generation = model.generate(PROMPT, max_tokens=2, temperature=0, logprobs=n)
        generation.read()
        row = model.logits(PROMPT)[-1].astype(np.float64)
        expected = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        pairs = generation.logprobs[0]
        assert max(n, 1) == len(pairs)
        assert np.argsort(-expected)[: len(pairs)].tolist() == [i for i, _ in pairs]
        assert np.allclose([p for _, p in pairs], expected[[i for i, _ in pairs]], atol=1e-4)
        assert 2 == len(generation.logprobs)
    plain = model.generate(PROMPT, max_tokens=2, temperature=0)
    plain.read()
    assert [] == plain.logprobs


def test_seeds(load):
    """S04: one seed gives one text: cold, with its beginning reused, and among others."""
    model = load("gpt2", parallel=4)
    settings = {"seed": 42, "temperature": 1.5, "max_tokens": 20, "top_k": 0}
    cold = model.generate(PROMPT, **settings)
    expected = cold.read()
    assert 42 == cold.seed
    with model.open() as session:
        session.feed(PROMPT[:3])
        assert 3 == session.resume(PROMPT)
        assert expected == session.generate(**settings).read()
    together = [model.generate(PROMPT, **settings | {"seed": s}) for s in (42, 43, 42)]
    texts = [g.read() for g in together]
    assert [expected, expected] == texts[::2]
    assert expected != texts[1]
    drawn = [model.generate(PROMPT, max_tokens=1).seed for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_a_seed_that_was_told_gives_the_text_again(shared):
    """A missing seed is drawn, and `seed` is all that is needed to repeat the answer."""
    model = shared("gpt2")
    first = model.generate(PROMPT, max_tokens=12, temperature=1.2)
    text = first.read()
    assert (
        text == model.generate(PROMPT, max_tokens=12, temperature=1.2, seed=first.seed).read()
    )


def test_dry_breakers_come_from_the_vocabulary(shared):
    """DRY does not see past a token that holds a breaker."""
    model = shared("gpt2")
    settings = {"max_tokens": 24, "temperature": 0}
    plain = model.generate("the the the the", **settings).read()
    dry = {"dry_multiplier": 50.0, "dry_allowed_length": 1}
    assert plain != model.generate("the the the the", **settings, **dry).read()
    broken = model.generate("the the the the", **settings, **dry, dry_breakers=["e", "a", "o"])
    assert broken.read() != model.generate("the the the the", **settings, **dry).read()


def test_penalties_know_the_prompt(shared):
    """A token of the prompt counts as said."""
    model = shared("llama")
    best = int(model.logits(PROMPT)[-1].argmax())
    prompt = [*PROMPT[:-1], best, PROMPT[-1]]
    again = int(model.logits(prompt)[-1].argmax())
    settings = {"max_tokens": 1, "temperature": 0, "repeat_penalty": 1e6}
    generation = model.generate([*prompt, again, PROMPT[-1]], **settings)
    generation.read()
    assert generation.tokens[0] not in {*prompt, again}


BAD = (
    [np.full(264, -np.inf)],
    [np.where(np.arange(264) == 9, np.nan, 0.0)],
    [np.where(np.arange(264) < 2, np.inf, 0.0)],
)


@pytest.mark.parametrize("rows", BAD)
def test_logits_without_a_token_are_an_error(scripted, rows):
    """S02: typed, for that request; the next one works."""
    model, script = scripted(logits=rows, parallel=2)
    generation = model.generate([65], max_tokens=5)
    with pytest.raises(SamplingError, match="no token to choose"):
        generation.read()
    assert ("error", []) == (generation.finish_reason, generation.tokens)
    assert [] == list(generation)
    script.logits = ()
    assert "" == model.generate([65], max_tokens=5).read()


def test_a_bias_that_forbids_all(scripted):
    """S02: the same, where the request itself is to blame."""
    model, _ = scripted(b"abc")
    bias = dict.fromkeys(range(264), -math.inf)
    with pytest.raises(SamplingError, match="no token to choose"):
        model.generate([65], logit_bias=bias).read()


def test_an_encoder_does_not_write(shared):
    """It says so."""
    model = shared("bert")
    for call in (model.generate, model.logits, lambda _: model.open(), model.restore):
        with pytest.raises(OptionError, match="bert is an encoder"):
            call([1, 2])


@pytest.mark.parametrize(
    ("ids", "error"), [([], OptionError), ([-1], TokenizerError), ([1] * 300, ContextFullError)]
)
def test_what_an_encoder_cannot_read(shared, ids, error):
    """V09, V10: too long, empty or no tokens."""
    with pytest.raises(error):
        shared("bert").hidden(ids)


def test_the_package_shows_what_its_users_need():
    """The names of the public face."""
    assert umbel.Model is not None
    assert {"load", "Model", "Session", "Generation"} <= set(umbel.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        umbel.nothing  # noqa: B018


def test_an_answer_can_be_polled(load):
    """Without waiting: somebody tells when there is something."""
    model, told = load("llama"), threading.Event()
    wanted = model.generate("Once", max_tokens=12, temperature=0).read()
    answer = model.generate("Once", max_tokens=12, temperature=0, notify=told.set)
    text, polls = "", 0
    while answer.finish_reason is None:
        assert told.wait(10)
        told.clear()
        text += answer.poll()
        polls += 1
    assert (text, answer.text, answer.finish_reason) == (wanted, wanted, "length")
    assert answer.poll() == ""
    assert polls > 1
    assert len(answer.tokens) == 12


def test_a_polled_answer_can_be_cancelled(load):
    """It ends soon, and nobody waits for that."""
    model, told = load("llama"), threading.Event()
    answer = model.generate([5], max_tokens=50, temperature=0, notify=told.set)
    answer.cancel()
    while answer.finish_reason is None:
        assert told.wait(10)
        told.clear()
        answer.poll()
    assert answer.finish_reason == "cancelled"
    assert len(answer.tokens) < 50

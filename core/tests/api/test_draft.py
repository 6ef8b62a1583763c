"""Speculative decoding as a user sees it: faster perhaps, and never another text."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
import umbel
from umbel import host
from umbel.errors import ModelFormatError, OptionError, UmbelError

ORACLES = Path(__file__).parents[1] / "data" / "oracles"
PROMPT = [1, 100, 200, 300, 17, 100, 200, 300]
MODELS = (
    "llama",
    "qwen2",
    "qwen3",
    "gpt2",
    "gemma3",
    "phi3",
    "olmo2",
    "granite",
    "lfm2",
    "mamba",
    "mamba2",
)
SAMPLING = (
    {"temperature": 1.2, "seed": 5},
    {"temperature": 0.9, "seed": 6, "mirostat": 2},
    {"temperature": 0.8, "seed": 7, "repeat_penalty": 1.3, "dry_multiplier": 0.8},
    {"temperature": 1.0, "seed": 8, "xtc_probability": 0.5, "top_k": 0},
    {"temperature": 0, "presence_penalty": 0.7},
)


def path(name):
    return ORACLES / f"{name}.gguf"


def both(model, prompt=PROMPT, **settings):
    """The answer without drafts, and with them; by turns, as together none has any."""
    plain = model.generate(prompt, **settings, draft_max=0)
    plain.read()
    drafts = model.generate(prompt, **settings)
    drafts.read()
    assert (0, 0) == (plain.drafted, plain.accepted)
    return plain, drafts


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_always_right_about_itself(shared, name):
    """The same greedy text; every token of a draft is accepted, unless the text ends in it."""
    model = shared(name, draft=path(name))
    plain, drafts = both(model, max_tokens=33, temperature=0)
    assert (plain.tokens, plain.text) == (drafts.tokens, drafts.text)
    if plain.finish_reason == "length":
        assert 0 < drafts.accepted == drafts.drafted
    assert drafts.accepted >= len(plain.tokens) // 2


@pytest.mark.parametrize("name", MODELS)
def test_lookup_tells_the_same_text(shared, name):
    """Of a prompt that repeats itself."""
    model = shared(name, draft="lookup")
    plain, drafts = both(model, [*PROMPT, 17, 100] * 2, max_tokens=40, temperature=0)
    assert plain.tokens == drafts.tokens
    assert plain.finish_reason == drafts.finish_reason


@pytest.mark.parametrize("settings", SAMPLING)
@pytest.mark.parametrize("name", ["stories260K", "mamba2"])
def test_a_seed_gives_its_text_with_drafts_too(shared, name, settings):
    """A token costs one draw, accepted or not: penalties and all else see the same past."""
    model = shared(name, draft=path(name))
    plain, drafts = both(model, max_tokens=40, **settings)
    assert plain.tokens == drafts.tokens
    assert 0 < drafts.accepted < drafts.drafted


def test_a_model_of_another_architecture(shared):
    """All that counts is the vocabulary; nothing that it guesses has to be right."""
    model = shared("stories260K", draft=path("phi3"))
    plain, drafts = both(model, "Once upon a time", max_tokens=30, temperature=0)
    assert plain.text == drafts.text
    assert drafts.drafted


def test_log_probabilities(shared):
    """They are those of the model, token by token."""
    model = shared("llama", draft=path("llama"))
    plain, drafts = both(model, max_tokens=20, temperature=0, logprobs=2)
    assert drafts.accepted
    assert len(plain.logprobs) == len(drafts.logprobs)
    for one, other in zip(plain.logprobs, drafts.logprobs, strict=True):
        assert [i for i, _ in one] == [i for i, _ in other]
        assert [p for _, p in one] == pytest.approx([p for _, p in other], abs=1e-4)


@pytest.mark.parametrize("n", range(1, 11))
@pytest.mark.parametrize("name", ["llama", "mamba", "lfm2"])
def test_a_session_goes_on_after_what_was_read(shared, name, n):
    """From the middle of an accepted run: it holds the tokens that were read, and only them."""
    model = shared(name, draft=path(name))
    with model.open() as plain, model.open() as session:
        expected = plain.generate(PROMPT, max_tokens=n, temperature=0, draft_max=0)
        expected.read()
        answer = session.generate(PROMPT, max_tokens=30, temperature=0)
        while len(answer.tokens) < n:
            next(answer)
        answer.close()
        m = len(answer.tokens)  # a piece may need several tokens
        assert [*PROMPT, *expected.tokens] == session.tokens[: len(PROMPT) + n]
        assert len(PROMPT) + m == len(session)
        plain.rewind(len(PROMPT))
        plain.generate([], max_tokens=m, temperature=0, draft_max=0).read()
        goes_on = {"max_tokens": 9, "temperature": 0}
        assert (
            plain.generate([5], **goes_on, draft_max=0).read()
            == session.generate([5], **goes_on).read()
        )


@pytest.mark.parametrize("name", ["mamba", "mamba2", "lfm2"])
def test_the_snapshot_of_the_prompt_stays(load, name):
    """Many drafts later a session still goes back to it, as it would without."""
    model = load(name, draft=path(name), draft_max=3)
    with model.open() as session:
        session.feed(PROMPT)
        answer = session.generate([5], max_tokens=60, temperature=0)
        answer.read()
        assert answer.drafted > 20
        assert len(PROMPT) + 1 == session.resume([*PROMPT, 5, 9])
        assert len(PROMPT) == session.resume([*PROMPT, 6])


@pytest.mark.parametrize("draft", ["lookup", path("stories260K")])
def test_stop_texts_and_shifts(load, draft):
    """A stop text in the middle of a run, and a context that is too short."""
    model = load("stories260K", draft=draft, ctx=32)
    settings = {"max_tokens": 90, "temperature": 0, "keep": 4}
    plain, drafts = both(model, "Once upon a time", **settings)
    assert plain.tokens == drafts.tokens
    assert plain.dropped == drafts.dropped > 0
    plain, drafts = both(model, "Once upon a time", **settings, stop=["girl na"])
    assert (plain.text, "girl na") == (drafts.text, drafts.stop_string)


@pytest.mark.parametrize("draft", ["lookup", path("llama")])
@pytest.mark.parametrize("adapters", [None, {}, {"llama-lora": -0.5}])
@pytest.mark.parametrize(
    "settings",
    [
        {"kv": "q8_0", "ubatch": 3},
        {"regex": "(yes|no|maybe)( (yes|no|maybe))*", "stop": ["o y"]},
        {"json_schema": True, "temperature": 1.0, "seed": 3, "logprobs": 1},
        {"grammar": 'root ::= ("ab" | "cd"){2,40}', "keep": 3},
    ],
)
def test_with_adapters_and_constraints(load, draft, adapters, settings):
    """The same text, whatever else is asked for at the same time."""
    given = {"temperature": 0, "max_tokens": 50} | settings
    held = {name: given.pop(name) for name in ("kv", "ubatch") if name in given}
    model = load("llama", ctx=48, draft=draft, adapters=path("llama-lora"), **held)
    plain, drafts = both(model, adapters=adapters, **given)
    assert (plain.tokens, plain.text, plain.dropped) == (
        drafts.tokens,
        drafts.text,
        drafts.dropped,
    )
    assert (plain.finish_reason, plain.stop_string) == (
        drafts.finish_reason,
        drafts.stop_string,
    )
    assert len(plain.logprobs) == len(drafts.logprobs)


@pytest.mark.parametrize("buckets", [(1, 4, 16), (3, 8), (1,), (1, 32)])
@pytest.mark.parametrize("name", ["llama", "mamba", "lfm2"])
def test_a_device_with_buckets(add_backend, load, name, buckets):
    """A recurrent state never sees padding; where no step is long enough, there is no draft."""
    add_backend("sized", token_buckets=buckets)
    model = load(name, device="sized", draft=path(name))
    plain, drafts = both(model, max_tokens=24, temperature=0)
    assert plain.tokens == drafts.tokens
    drafted = buckets != (1,) and (name == "llama" or buckets != (1, 32))
    assert drafted == bool(drafts.drafted)


def test_many_at_once(load):
    """Some with drafts, some without, more than there are places for."""
    model = load("gpt2", parallel=2, draft=path("gpt2"))
    prompts = [[1, 50 + i, 60, 61] for i in range(6)]
    given = {"max_tokens": 20, "temperature": 0}
    alone = [model.generate(p, **given, draft_max=0).read() for p in prompts]
    answers = [model.generate(p, **given, draft_max=i % 3) for i, p in enumerate(prompts)]
    assert alone == [answer.read() for answer in answers]


def test_few_plans_serve_all_steps(load):
    """Steps with drafts are 2, 4, 8 or 16 tokens long."""
    model = load("llama", draft=path("llama"), draft_max=11)
    for n in range(2, 40, 3):
        model.generate(PROMPT[1:], max_tokens=n, temperature=0).read()
    shapes = {key.tokens for key in model.runner._plans} - {len(PROMPT) - 1, model.ctx}
    assert {1, 2, 4, 8} == shapes


# what is refused


@pytest.mark.parametrize(
    ("given", "kind", "what"),
    [
        ({"draft": path("gpt2")}, OptionError, "another vocabulary"),
        ({"draft": path("bert")}, OptionError, "the draft model is an encoder"),
        ({"draft": path("mamba").with_suffix(".npz")}, ModelFormatError, "GGUF"),
        ({"draft": "no/such.gguf"}, UmbelError, "no such model file"),
        ({"draft": "lookup", "draft_max": -1}, OptionError, "draft_max has a value"),
        ({"draft": "lookup", "draft_max": 1.5}, OptionError, "draft_max has a value"),
    ],
)
def test_drafts_that_cannot_be(load, given, kind, what):
    """Refused at load, with the reason."""
    with pytest.raises(kind, match=what):
        load("llama", **given)


def test_a_request_for_drafts_where_there_are_none(shared):
    """Never silent: it would be slower than was asked for."""
    model = shared("llama")
    with pytest.raises(OptionError, match="the model has no drafts") as caught:
        model.generate(PROMPT, draft_max=4)
    assert "lookup" in caught.value.do
    assert model.generate(PROMPT, draft_max=0, max_tokens=1).read() is not None


def test_closing_closes_the_draft_model(load):
    """Its memory and its file are given back."""
    model = load("llama", draft=path("llama"))
    model.generate(PROMPT, max_tokens=9, temperature=0).read()
    (runner,) = model.engine.draft.runners
    model.close()
    with pytest.raises(UmbelError, match="closed"):
        runner.definition.file.array("token_embd.weight")


def test_a_model_that_is_lost_is_as_good_as_closed(load):
    """The device forgets what it compiled for it and for its draft: it holds the weights."""
    load("llama")  # opens the device
    programs = host._open["host:0"].programs
    before = set(programs)
    model = umbel.load(path("llama"), "host", ctx=128, draft=path("llama"))
    model.generate(PROMPT, max_tokens=9, temperature=0).read()
    assert set(programs) - before
    until = time.monotonic() + 10
    del model
    while set(programs) - before:
        assert time.monotonic() < until
        gc.collect()

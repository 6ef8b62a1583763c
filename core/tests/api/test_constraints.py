"""Constraints of whole answers: their ends, batches, sessions, and what is refused."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
import regex
from umbel.errors import OptionError, SamplingError
from umbel.sampling import Settings

ONCE = "Once upon a time"
CAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "lives": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["name", "lives"],
    "additionalProperties": False,
}
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def test_every_form_of_a_constraint(shared):
    """As a dict, as text, as True; a regex; a grammar; in `Settings`; in a chat."""
    model = shared("stories260K")
    for schema in (CAT, json.dumps(CAT)):
        answer = model.generate(ONCE, json_schema=schema, max_tokens=100, seed=1)
        cat = json.loads(answer.read())
        assert list(cat) == ["name", "lives"]
        assert cat["lives"] in range(1, 10)
        assert answer.finish_reason == "stop"
    said = [{"role": "user", "content": ONCE}]
    chosen = Settings(regex="yes|no", seed=1)
    assert model.chat(said, template=TEMPLATE, sampling=chosen).read() in ("yes", "no")
    answer = model.generate(ONCE, grammar='root ::= "a" | "b"', sampling=Settings(seed=1))
    assert answer.read() in ("a", "b")
    text = model.generate(ONCE, json_schema=True, max_tokens=1).read()
    assert text.startswith("{")


def test_the_model_has_its_way_where_it_may(scripted):
    """It says what it wants, as long as that is allowed; it ends where it wants and may."""
    model, _ = scripted(b"123 and more", start=0)
    answer = model.generate([65], regex="[0-9]+[a-z]?", temperature=0, max_tokens=9)
    assert answer.read() == "1230a"  # for the blank that it wanted came the first of equals
    model, _ = scripted(b"42", start=0)  # then the end, which is allowed then
    answer = model.generate([65], regex="[0-9]*", temperature=0)
    assert ("42", "stop", 3) == (answer.read(), answer.finish_reason, len(answer.tokens))


def test_a_model_that_wants_to_end_too_early(scripted):
    """The end is not allowed before the text may end."""
    model, script = scripted(b"", start=0)
    answer = model.generate([65], regex="abc", temperature=0, max_tokens=9)
    assert ("abc", "stop", 3) == (answer.read(), answer.finish_reason, len(answer.tokens))
    assert script.computed == 3  # no step for an end that is the only choice


@pytest.mark.parametrize("n", range(1, 14))
def test_an_answer_that_is_cut(shared, n):
    """It ends with "length", and is the beginning of a text that obeys; whole, it stops."""
    answer = shared("stories260K").generate(ONCE, regex="(ä|一|😀){4}", max_tokens=n, seed=n)
    text = answer.read()
    whole = re.fullmatch("(ä|一|😀){4}", text)
    assert regex.fullmatch("(ä|一|😀){4}", text, partial=True)
    assert ("stop" if whole else "length") == answer.finish_reason


def test_a_full_context_is_a_cut_too(load):
    """It says "length"; where old tokens are dropped instead, the text is whole."""
    model = load("stories260K", ctx=24)
    answer = model.generate(ONCE, regex="[a-z ]{100}", seed=1)
    assert regex.fullmatch("[a-z ]{100}", answer.read(), partial=True)
    assert answer.finish_reason == "length"
    answer = model.generate(ONCE, regex="[a-z]{60}", keep=4, seed=1)
    assert re.fullmatch("[a-z]{60}", answer.read())
    assert ("stop", True) == (answer.finish_reason, answer.dropped > 0)


def test_a_blank_at_the_start_of_all_text(shared):
    """The blank that SentencePiece puts there is not taken out of a text that must obey."""
    for seed in range(4):
        answer = shared("llama").generate([1], regex=" [ a-z]{9}", seed=seed, temperature=3)
        assert re.fullmatch(" [ a-z]{9}", answer.read())


def test_a_stop_text_ends_it_sooner(scripted):
    """Who asks for both gets both."""
    model, _ = scripted(b"1,2,3", start=0, endless=True)
    answer = model.generate([65], regex="[0-9,]*", stop=",3", temperature=0, max_tokens=9)
    assert ("1,2", ",3") == (answer.read(), answer.stop_string)


def test_different_constraints_in_one_batch(shared):
    """Each obeys its own, and none changes what another writes."""
    model = shared("stories260K")
    asked = [
        {"json_schema": CAT},
        {"regex": "[a-z]{20}"},
        {"grammar": 'root ::= ("- " [a-z]+ "\\n"){3}'},
        {"max_tokens": 20},
    ]
    given = [{"max_tokens": 100, "seed": 5} | settings for settings in asked]
    alone = [model.generate(ONCE, **settings).read() for settings in given]
    together = [model.generate(ONCE, **settings) for settings in given]
    texts = [answer.read() for answer in together]
    assert alone == texts
    assert json.loads(texts[0])
    assert re.fullmatch("[a-z]{20}", texts[1])
    assert regex.fullmatch(r"(- [a-z]+\n){3}", texts[2], partial=True)


def test_sessions(shared):
    """A constraint is that of one answer: after forks and rewinds too, each begins anew."""
    with shared("stories260K").open() as session:
        session.feed(ONCE)
        start = len(session)
        first = session.generate(regex="[a-z]{9}", seed=1).read()
        with session.fork() as other:
            texts = [s.generate(regex="[0-9]{9}", seed=2).read() for s in (session, other)]
        assert re.fullmatch("[0-9]{9}", texts[0])
        assert texts[0] == texts[1]
        session.rewind(start)
        assert first == session.generate(regex="[a-z]{9}", seed=1).read()
        assert session.generate(max_tokens=4, seed=1).read()


def test_what_was_cancelled_is_forgotten(shared):
    """The answer is a beginning; the next one obeys its own constraint from its start."""
    with shared("stories260K").open() as session:
        answer = session.generate(ONCE, regex="[a-z]{400}", seed=1)
        first = next(answer)
        answer.close()
        assert ("cancelled", first) == (answer.finish_reason, answer.text)
        assert re.fullmatch("[a-z]+", first)
        assert session.generate(regex="yes|no", seed=1).read() in ("yes", "no")


def test_logprobs_are_those_of_the_model(shared):
    """The constraint chooses; what is told is what the model thought."""
    model = shared("stories260K")
    answer = model.generate(ONCE, regex="Z", logprobs=2, temperature=0)
    assert answer.read() == "Z"
    ids = model.tokenize(ONCE)
    (told,) = answer.logprobs
    best = model.logits(ids)[-1].argmax()
    assert [best, answer.tokens[0]] == [told[0][0], told[-1][0]]
    assert len(told) == 3


@pytest.mark.parametrize(
    "settings",
    [{"json_schema": {"not": {}}}, {"regex": "["}, {"grammar": "root ::= a"}],
    ids=str,
)
def test_what_is_refused_is_refused_at_once(scripted, settings):
    """Before anything is computed; the session goes on."""
    model, script = scripted(b"abc")
    with model.open() as session:
        with pytest.raises(SamplingError, match="cannot be obeyed") as caught:
            session.generate([65], **settings)
        assert caught.value.where in settings
        assert ([], 0) == (session.tokens, script.computed)
        assert session.generate([65], max_tokens=2).read()


def test_two_constraints(shared):
    """One at most, also when one comes from `sampling`."""
    with pytest.raises(SamplingError, match="one constraint only"):
        shared("llama").generate("a", regex="a", sampling=Settings(json_schema=True))


def test_an_error_in_the_middle_is_that_answers_own(shared):
    """It is raised to the reader; the others go on."""
    model = shared("stories260K")
    digits = {i for i in range(512) if model.tokenizer.token_bytes(i) == b"7"}
    bias = dict.fromkeys(digits, -np.inf)
    bad = model.generate(ONCE, regex="[a-z]{5}7", logit_bias=bias, seed=1)
    good = model.generate(ONCE, regex="[a-z]{20}", seed=1)
    with pytest.raises(SamplingError, match="forbids all that the constraint allows"):
        bad.read()
    assert "error" == bad.finish_reason
    assert re.fullmatch("[a-z]{20}", good.read())


def test_the_vocabulary_is_made_once_and_late(load):
    """It takes a moment: only who asks for a constraint waits, and only the first time."""
    model = load("stories260K")
    model.generate(ONCE, max_tokens=1).read()
    assert "vocabulary" not in vars(model)
    model.generate(ONCE, regex="a").read()
    made = model.vocabulary
    model.generate(ONCE, json_schema=True, max_tokens=2).read()
    assert made is model.vocabulary


def test_without_the_extra(shared, monkeypatch):
    """One error that names the pip line; everything else works."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(OptionError, match=r"need the extra \[grammar\]") as caught:
        shared("llama").generate("a", regex="not asked for in another test")
    assert caught.value.do == "pip install 'umbel-core[grammar]'"
    assert shared("llama").generate("a", max_tokens=1, seed=1).tokens is not None

"""Constraints: what is allowed; each text that ends obeys, whatever the logits are."""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import numpy as np
import pytest
import regex
from umbel import gguf
from umbel.errors import OptionError, SamplingError
from umbel.extras.grammar import Constraint, Vocabulary, checked
from umbel.generation import Output
from umbel.sampling import Sampler, Settings
from umbel.text import Tokenizer, load_tokenizer

ORACLES = Path(__file__).parents[1] / "data" / "oracles"
ANY = {"temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # as wild as can be


@attrs.frozen
class Writer:
    """A vocabulary, and random logits in the place of a model."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary

    def write(
        self, *, most: int = 2000, logits: Any = None, **settings: Any
    ) -> tuple[str, str, list[int]]:
        """A text, why it ends, and its tokens."""
        chosen = Settings(**ANY | settings)
        n = self.tokenizer.n_vocab
        sampler = Sampler(chosen, n, constraint=self.constraint(**settings))
        out, tokens, rng = Output(self.tokenizer, [], exact=True), [], rng_of(chosen.seed)
        text = ""
        while len(tokens) < most:
            row = rng.standard_normal(n, np.float32) if logits is None else logits
            tokens.append(sampler.sample(row))
            ends = tokens[-1] in self.tokenizer.vocab.ends
            text += "" if ends else out.push(tokens[-1])
            if ends or sampler.done:
                return text + out.flush(), "stop", tokens
        return text + out.flush(), "length", tokens

    def constraint(self, **settings: Any) -> Constraint:
        names = {"json_schema", "regex", "grammar"} & set(settings)
        grammar = checked(*Settings(**{name: settings[name] for name in names}).constraint)
        assert grammar is not None
        return Constraint(self.vocabulary, grammar)

    def allowed(self, constraint: Constraint) -> set[int]:
        return set(np.flatnonzero(constraint.mask()).tolist())

    def bytes_of(self, ids: set[int]) -> set[bytes]:
        return {self.tokenizer.token_bytes(i) for i in ids}


def rng_of(seed: int | None) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def writer(request: pytest.FixtureRequest) -> Iterator[Writer]:
    """One of SentencePiece with byte tokens, one of byte pairs: 512 tokens each."""
    with gguf.open(ORACLES / f"{request.param}.gguf") as file:
        tokenizer = load_tokenizer(file.metadata)
    pieces = map(tokenizer.token_bytes, range(tokenizer.n_vocab))
    return Writer(tokenizer, Vocabulary(pieces, tokenizer.vocab.ends))


# JSON


def obj(required: Any = None, /, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    closed = {"type": "object", "additionalProperties": False}
    return closed | {"properties": properties, "required": names}


STRING = {"type": "string", "maxLength": 12}
INTEGER, NULL = {"type": "integer"}, {"type": "null"}
NODE = obj(value={"enum": [1, 2]}, next={"anyOf": [NULL, {"$ref": "#/$defs/node"}]})
SCHEMAS: dict[str, dict[str, Any]] = {
    "string": STRING,
    "short string": {"type": "string", "minLength": 3, "maxLength": 3},
    "integer": {"type": "integer", "minimum": -3, "maximum": 1200},
    "open integer": {"type": "integer", "exclusiveMinimum": 7},
    "number": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "boolean": {"type": "boolean"},
    "null": NULL,
    "types": {"type": ["integer", "null", "string"], "maxLength": 4},
    "enum": {"enum": ["red", 'a "quote"', "日本", "😀", None, True, 1.5, [1, {"x": []}]]},
    "const": {"const": {"é\n": ["\u0001", "\\"]}},
    "pattern": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"},
    "loose pattern": {"type": "string", "pattern": "é|ü", "maxLength": 9},
    **{name: {"type": "string", "format": name} for name in ("ipv4", "ipv6", "uuid", "email")},
    "array": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    "no items": {"type": "array", "maxItems": 0},
    "object": obj(name=STRING, age={"type": "integer", "minimum": 0, "maximum": 150}),
    "optional": obj(["b"], a=INTEGER, b=NULL, c=STRING),
    "empty object": obj(),
    "map": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 1},
    "names": {
        "type": "object",
        "patternProperties": {"^x[a-z]{2}$": NULL},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "nested": obj(a=obj(b=obj(c={"type": "array", "items": obj(d=NULL), "maxItems": 2}))),
    "odd names": obj(**{"é": NULL, 'q"': NULL, " ": NULL, "日本": NULL, "": NULL}),
    "any of": {"anyOf": [STRING, obj(a=INTEGER), NULL]},
    "one of": {"oneOf": [obj(kind={"const": k}, of=INTEGER) for k in ("a", "b")]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {k: INTEGER}, "required": [k]} for k in "ab"
        ],
        "maxProperties": 2,
    },
    "recursive": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "said about": obj(a=NULL)
    | {"title": "T", "description": "D", "default": {}, "$comment": ""},
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=list(SCHEMAS))
def test_json_obeys_its_schema(writer, schema):
    """Of the wildest logits too; those that end within the bound."""
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.FormatChecker()
    )
    ended = 0
    for seed in range(4):
        text, reason, _ = writer.write(json_schema=schema, seed=seed, most=600)
        if reason == "stop":
            validator.validate(json.loads(text))
            ended += 1
    assert ended >= 1


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """A schema of up to so many levels."""
    low = rng.randrange(-50, 50)
    leaves: list[dict[str, Any]] = [
        {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 9)},
        {"type": "integer", "minimum": low, "maximum": low + rng.randrange(500)},
        {"type": "number", "exclusiveMinimum": low, "maximum": low + 1.25},
        {"enum": rng.sample(["x", "é\t", 1, -0.5, None, True, [], {"k": 'v"'}], 3)},
        {"type": rng.sample(["boolean", "null", "integer"], 2)},
    ]
    if depth == 0:
        return rng.choice(leaves)
    some = [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    names = [f"{rng.choice(['a', 'ü', 'long name'])}{i}" for i in range(len(some))]
    required = [name for name in names if rng.random() < 0.7]
    return rng.choice(
        [
            obj(required, **dict(zip(names, some, strict=True))),
            {"type": "array", "items": some[0], "maxItems": rng.randrange(4)},
            {"type": "array", "prefixItems": some, "items": False, "minItems": len(some)},
            {"anyOf": some},
        ]
    )


def test_random_schemas(writer):
    """60 of them for each vocabulary, two levels deep."""
    ended = 0
    for seed in range(60):
        schema = random_schema(random.Random(seed), 2)
        text, reason, _ = writer.write(json_schema=schema, seed=seed, most=400)
        if reason == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
            ended += 1
    assert ended > 50


def test_any_object(writer):
    """True is any JSON object."""
    texts = [writer.write(json_schema=True, seed=seed) for seed in range(6)]
    ended = [json.loads(text) for text, reason, _ in texts if reason == "stop"]
    assert ended
    assert all(isinstance(value, dict) for value in ended)


def test_blanks_in_json_have_a_bound(writer):
    """A model that loves blanks cannot write them for ever."""
    blanks = np.zeros(writer.tokenizer.n_vocab, np.float32)
    for i in range(len(blanks)):
        blanks[i] = 10 if not writer.tokenizer.token_bytes(i).strip() else 0
    text, reason, _ = writer.write(json_schema=obj(a=NULL), logits=blanks, temperature=0)
    assert reason == "stop"
    assert json.loads(text) == {"a": None}
    assert re.search(r"\n[ \t]{20}", text) or " " in text
    compact = obj(a=NULL) | {"x-guidance": {"whitespace_flexible": False}}
    text, reason, _ = writer.write(json_schema=compact, logits=blanks, temperature=0)
    assert ('{"a":null}', "stop") == (text, reason)


# regular expressions and grammars

REGEXES = [
    "yes|no",
    "[a-z]{3,9}",
    r"\d{4}-\d\d-\d\d",
    "^(ab|cd)+$",
    "(?i)umbel",
    r"[^\n\"]{5,20}",
    r"[ぁ-ゖ]{2,4}é+[\U0001F600-\U0001F64F]",
    " ?x",
    "a/b\\\\\n",
    r"(\w+\s){1,3}\.",
    "a{0}",
    "",
]


@pytest.mark.parametrize("pattern", REGEXES)
def test_a_text_matches_its_regex(writer, pattern):
    """All of it, as `re.fullmatch` has it."""
    for seed in range(8):
        text, reason, _ = writer.write(regex=pattern, seed=seed, most=400)
        assert regex.fullmatch(pattern, text, partial=reason == "length")
        assert reason == "stop" or "+" in pattern


MOVE = r"(([a-h]x)?[a-h][1-8](=[NBRQ])?|[NBRQK][a-h]?[1-8]?x?[a-h][1-8]|O-O(-O)?)[+#]?"
GRAMMARS = {
    "list": ('root ::= item+\nitem ::= "- " [^\\r\\n]{1,9} "\\n"', r"(- [^\r\n]{1,9}\n)+"),
    "chess": (
        """
# two moves at most
root ::= "1. " move " " move ("\\n2. " move)?
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBRQK] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBRQ])?
castle ::= "O-O" "-O"?
""",
        rf"1\. {MOVE} {MOVE}(\n2\. {MOVE})?",
    ),
    "characters": ('root ::= [ぁ-ゖァ-ヺ]{2} "é" [^a-zé]', "[ぁ-ゖァ-ヺ]{2}é[^a-zé]"),
    "escapes": (
        r'root ::= [\u3041-\u3096] [\xe8\u00e9] [\U0001F600-\U0001F64F] "\x41\u0042\u00ff\\u"',
        "[ぁ-ゖ][èé][\U0001f600-\U0001f64f]ABÿ\\\\u",
    ),
    "quotes": (r'root ::= "\"" ([^"\\] | "\\" ["\\n]){0,5} "\""', r'"([^"\\]|\\["\\n]){0,5}"'),
    "brackets": (r'root ::= [\[\]]{2} "a/b" [+-] [a^]', r"[\[\]]{2}a/b[+-][a^]"),
    "names": ('root ::= fooBar "x"\nfooBar ::= "a" | b-c\nb-c ::= "b"', "[ab]x"),
    "lines": ('root ::=\r\n  "a" |\r\n  "b" # one\r\n\r\n', "[ab]"),
    "counts": ('root ::= "a"{3} "b"{2,} "c"{0,2} "d"?', "a{3}b{2,}c{0,2}d?"),
    "empty": ('root ::= ""', ""),
    "lark": ('start: A ("," A){1,3}\nA: /[0-9]/ "x"?', "[0-9]x?(,[0-9]x?){1,3}"),
}


@pytest.mark.parametrize(("grammar", "pattern"), GRAMMARS.values(), ids=list(GRAMMARS))
def test_a_text_is_one_of_its_grammar(writer, grammar, pattern):
    """GBNF and Lark, held against an equal regular expression."""
    for seed in range(8):
        text, reason, _ = writer.write(grammar=grammar, seed=seed, most=200)
        assert regex.fullmatch(pattern, text, partial=reason == "length")
        assert reason == "stop" or "+" in pattern or "{2,}" in pattern


def test_a_grammar_that_no_regex_can_be(writer):
    """Brackets are closed, however deep they are."""
    grammar = 'root ::= "(" root ")" | "[" root "]" | "x" | "y"'
    for seed in range(8):
        text, reason, _ = writer.write(grammar=grammar, seed=seed)
        while text not in ("x", "y"):
            assert (text[0], text[-1]) in (("(", ")"), ("[", "]"))
            text = text[1:-1]
        assert reason == "stop"


# tokens


def test_what_may_come_next(writer):
    """All tokens that begin what may follow, doubles too; the ends where the text may end."""
    constraint = writer.constraint(regex="hello( [0-9])?")
    every = {i: writer.tokenizer.token_bytes(i) for i in range(writer.tokenizer.n_vocab)}
    text = b""
    while not constraint.done:
        rest = [r for r in (b"hello", b"hello 7") if r.startswith(text)]
        fits = {i for i, t in every.items() if t and any(r.startswith(text + t) for r in rest)}
        fits |= {i for i, t in every.items() if text == b"hello " and re.fullmatch(b"[0-9]", t)}
        ends = writer.tokenizer.vocab.ends if text == b"hello" else set()
        assert {*fits, *ends} <= writer.allowed(constraint)
        assert ends == writer.allowed(constraint) & writer.tokenizer.vocab.ends
        token = min(fits)
        constraint.accept(token)
        text += every[token]
    assert re.fullmatch(b"hello [0-9]", text)
    assert writer.tokenizer.vocab.ends == writer.allowed(constraint)


def test_control_tokens_are_in_no_text(writer):
    """Not where everything is allowed, nor by their letters; nor is a token without bytes."""
    constraint = writer.constraint(regex="(?s:.)*")
    tokens = range(writer.tokenizer.n_vocab)
    silent = {i for i in tokens if not writer.tokenizer.token_bytes(i)}
    assert silent & writer.allowed(constraint) <= writer.tokenizer.vocab.ends
    assert len(writer.allowed(constraint)) > 300
    (end,) = writer.tokenizer.vocab.ends
    name = re.escape(writer.tokenizer.vocab.tokens[end])
    assert end not in writer.allowed(writer.constraint(regex=name))


def test_a_character_of_several_tokens(writer):
    """Its first byte is allowed alone, and then only what completes it."""
    constraint = writer.constraint(regex="é")
    for byte in "é".encode():
        assert bytes([byte]) in writer.bytes_of(writer.allowed(constraint))
        assert not writer.tokenizer.vocab.ends & writer.allowed(constraint)
        by_bytes = {writer.tokenizer.token_bytes(i): i for i in writer.allowed(constraint)}
        constraint.accept(by_bytes[bytes([byte])])
    assert constraint.done


def test_copies(writer):
    """A deep copy goes on by itself; ends do not count."""
    constraint = writer.constraint(regex="ab|cd")
    a, b, c = (writer.tokenizer.vocab.ids[x] for x in "abc")
    other = copy.deepcopy(constraint)
    constraint.accept(a)
    other.accept(c)
    assert b in writer.allowed(constraint)
    assert b not in writer.allowed(other)
    constraint.accept(b)
    constraint.accept(min(writer.tokenizer.vocab.ends))
    assert constraint.done


def test_a_copied_sampler_goes_on_as_the_original_would(writer):
    """Each with its own place in the grammar."""
    n, rng = writer.tokenizer.n_vocab, rng_of(1)
    rows = rng.standard_normal((40, n), np.float32)
    one = Sampler(Settings(seed=3), n, constraint=writer.constraint(regex="(?s:.{100})"))
    for row in rows[:9]:
        one.sample(row)
    two = copy.deepcopy(one)
    assert [one.sample(row) for row in rows[9:]] == [two.sample(row) for row in rows[9:]]


# other settings


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"temperature": 0, "repeat_penalty": 5.0, "dry_multiplier": 9.0},
        {"repeat_penalty": 1e6, "frequency_penalty": 100.0, "presence_penalty": 100.0},
        {"dry_multiplier": 1e6, "dry_allowed_length": 0, "dry_breakers": []},
        {"top_k": 1, "typical": 0.01, "top_p": 0.0, "min_p": 1.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"mirostat": 2, "mirostat_tau": 0.0},
        {"logit_bias": dict.fromkeys(range(0, 512, 7), 1e9)},
        {"samplers": []},
    ],
    ids=str,
)
def test_the_constraint_wins(writer, settings):
    """Whatever else is asked for, and even if the model is sure of other tokens."""
    sure = np.linspace(-500, 500, writer.tokenizer.n_vocab, dtype=np.float32)
    for logits in (None, sure, -sure):
        given = {"regex": r"((ab|ba){4}\n){3}", "seed": 1, "logits": logits} | settings
        text, reason, _ = writer.write(**given)
        assert re.fullmatch(r"((ab|ba){4}\n){3}", text)
        assert reason == "stop"


def test_a_bias_that_forbids_all_that_is_allowed(writer):
    """It is told; the tokens that are left are taken where there are some."""
    tokens = writer.allowed(writer.constraint(regex="[ab]"))
    never = dict.fromkeys(tokens, -np.inf)
    with pytest.raises(SamplingError, match="forbids all that the constraint allows"):
        writer.write(regex="[ab]", logit_bias=never)
    never.popitem()
    assert writer.write(regex="[ab]", logit_bias=never)[0] in ("a", "b")


def test_logits_that_are_no_numbers(writer):
    """A constraint does not hide them."""
    row = np.zeros(writer.tokenizer.n_vocab, np.float32)
    row[400] = np.nan
    with pytest.raises(SamplingError, match="the logits are not finite"):
        writer.write(regex="yes|no", logits=row)


# what is refused

REFUSED = [
    ("json_schema", {"type": "strin"}, "strin"),
    ("json_schema", {"not": {}}, "not"),
    ("json_schema", {"if": {}}, "if"),
    ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    ("json_schema", {"type": "array", "contains": NULL}, "contains"),
    ("json_schema", {"dependentRequired": {}}, "dependentRequired"),
    ("json_schema", {"propertyNames": {}}, "propertyNames"),
    ("json_schema", {"type": "string", "format": "colour"}, "colour"),
    ("json_schema", {"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ("json_schema", {"$ref": "https://example.com/schema"}, "example.com"),
    ("json_schema", {"oneOf": [STRING, {"type": "string"}]}, "oneOf"),
    ("json_schema", {"x-guidance": {"lenient": True}, "not": {}}, "not"),
    ("json_schema", {"x-guidance": 3}, ""),
    ("json_schema", {"enum": []}, "Unsatisfiable"),
    ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
    ("json_schema", {"const": "\ud800"}, ""),
    ("json_schema", {"const": float("nan")}, ""),
    ("regex", "a[", "unclosed"),
    ("regex", "(?=a)b", "look-around"),
    ("regex", r"(a)\1", "backreferences"),
    ("regex", "\ud800", ""),
    ("grammar", "", "start"),
    ("grammar", "root = 'a'", ""),
    ("grammar", 'root ::= "a', "line 1"),
    ("grammar", 'root ::= ("a"', "line 1"),
    ("grammar", "root ::= other", "other"),
    ("grammar", 'other ::= "a"', "root"),
    ("grammar", r'root ::= "\ud800"', ""),
    ("grammar", r'root ::= "\uzzzz" "\U00110000"', ""),
    ("grammar", 'root ::= "\\', ""),
    ("grammar", 'root ::= start\nstart ::= "a"', "start"),
    ("grammar", f"root ::= {'(' * 4000}{')' * 4000}", "recursion"),
    ("grammar", "start: other", "other"),
    ("grammar", "start: <|im_end|>", "special"),
    ("grammar", 'start: "a" <[5]>', ""),
    ("grammar", 'start: "a" %json {"not": {}}', "not"),
]


@pytest.mark.parametrize(("kind", "given", "named"), REFUSED, ids=str)
def test_what_cannot_be_obeyed_is_refused(kind, given, named):
    """In one line that names it, without a model; nothing is ever ignored."""
    with pytest.raises(SamplingError, match="cannot be obeyed") as caught:
        checked(*Settings(**{kind: given}).constraint)
    assert kind == caught.value.where
    assert named in caught.value.got
    assert "\n" not in caught.value.got
    assert len(caught.value.got) <= 300


@pytest.mark.parametrize(
    "grammar", ["start: A\nA: /a/ & ~/a/", "start: A\nA: /[ab]/ & /[cd]/"], ids=str
)
def test_a_grammar_without_any_text(writer, grammar):
    """Some show that only with a vocabulary: also before anything is sampled."""
    with pytest.raises(SamplingError):
        writer.constraint(grammar=grammar)


def test_without_a_constraint_nothing_is_needed(monkeypatch):
    """The library is an extra, and only who asks for a constraint hears of it."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert Settings().constraint is None
    with pytest.raises(OptionError, match=r"need the extra \[grammar\]") as caught:
        checked(*Settings(regex="never asked for before").constraint)
    assert caught.value.do == "pip install 'umbel-core[grammar]'"

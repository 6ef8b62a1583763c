"""What holds for every tokenizer: special tokens, BOS and EOS, ids and bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from umbel.errors import TokenizerError
from umbel.text import StreamDecoder, Tokenizer
from umbel.text.load import load_tokenizer
from umbel.text.tokenizer import MARK, Matcher

BOS, EOS, END, OWN = 256, 257, 258, 259
TOKENS = (("<s>", 3), ("</s>", 3), ("<|im_end|>", 3), ("<own>", 4), ("<|im", 4), ("", 4))
ROLES = {"bos_token_id": BOS, "eos_token_id": EOS}


@pytest.fixture
def make(bytes_and: Callable[..., Any]) -> Callable[..., Tokenizer]:
    """A byte-level tokenizer with some special tokens, and these keys."""
    return lambda **keys: load_tokenizer(bytes_and(*TOKENS, **{**ROLES, **keys}))


@pytest.fixture
def tokenizer(make: Callable[..., Tokenizer]) -> Tokenizer:
    return make()


@pytest.mark.parametrize(
    ("text", "special", "ids"),
    [
        ("a<s>", False, [*b"a<s>"]),
        ("a<s>", True, [*b"a", BOS]),
        ("a<own>b", False, [*b"a", OWN, *b"b"]),
        ("<|im_end|>", False, [260, *b"_end|>"]),
        ("<|im_end|>", True, [END]),
        ("<|im_end|><|im<|im_end|>", True, [END, 260, END]),
        ("<<s>>", True, [*b"<", BOS, *b">"]),
        ("", True, []),
    ],
)
def test_special_tokens(tokenizer: Tokenizer, text: str, special: bool, ids: list[int]) -> None:
    """Control tokens are parsed only on demand, user-defined ones always, the longest first."""
    assert ids == tokenizer.encode(text, special=special)


@pytest.mark.parametrize("text", ["<s>", "</s>x", "<|im_end|>\n<s>"])
@pytest.mark.parametrize("name", ["gpt-2", "qwen2", "phi-3", "bert-bge", "botchan-unigram"])
def test_text_gives_no_control_token(vectors: Callable[..., Any], name: str, text: str) -> None:
    """Real vocabularies too: text that looks like a control token is text."""
    tokenizer = vectors(name).tokenizer
    texts = [text, "<|endoftext|>", "[SEP]", "<|end|>", "<pad>"]
    ids = [i for t in texts for i in tokenizer.encode(t, bos=False, eos=False)]
    unknown = tokenizer.vocab.roles.get("unk")
    control = [i for i in ids if tokenizer.vocab.kinds[i] == 3 and i != unknown]
    assert control == []


def test_matcher() -> None:
    """Leftmost, then longest; nothing is found in an empty set."""
    matcher = Matcher({"ab": 1, "abc": 2, "bcd": 3, " ": 4, "   ": 5})
    assert matcher.split("abcd    bcda") == [2, "d", 5, 4, 3, "a"]
    assert Matcher({}).split("abc") == ["abc"]
    assert Matcher({}).split("") == []


def test_blanks_after_a_token(vectors: Callable[..., Any]) -> None:
    """Phi-3's special tokens swallow the blanks after them, all but some."""
    tokenizer = vectors("phi-3").tokenizer
    ids = tokenizer.encode("<|user|>\n Hi<|end|>\n<|assistant|>", special=True, bos=False)
    assert [32010, *tokenizer.encode("Hi", bos=False), 32007, 32001] == ids
    ids = tokenizer.encode("<|endoftext|> x", special=True, bos=False)
    assert [32000, *tokenizer.encode(" x", bos=False)] == ids


@pytest.mark.parametrize(
    ("adds", "text", "special", "bos", "ids"),
    [
        (True, "a", True, True, [BOS, *b"a"]),
        (True, "<s>a", True, True, [BOS, *b"a"]),
        (True, "<s>a", False, True, [BOS, *b"<s>a"]),
        (True, "<s><s>", True, True, [BOS, BOS]),
        (True, "a", True, False, [*b"a"]),
        (True, "<s>a", True, False, [BOS, *b"a"]),
        (True, "", False, True, [BOS]),
        (False, "a", True, True, [*b"a"]),
        (False, "<s>a", True, True, [BOS, *b"a"]),
        (False, "", False, True, []),
    ],
)
def test_one_bos(
    make: Callable[..., Tokenizer],
    adds: bool,
    text: str,
    special: bool,
    bos: bool,
    ids: list[int],
) -> None:
    """BOS is not added before one that stands there already."""
    assert ids == make(add_bos_token=adds).encode(text, special=special, bos=bos)


@pytest.mark.parametrize(
    ("text", "eos", "ids"),
    [
        ("a", True, [*b"a", EOS]),
        ("a</s>", True, [*b"a", EOS]),
        ("a", False, [*b"a"]),
        ("", True, [EOS]),
    ],
)
def test_one_eos(make: Callable[..., Tokenizer], text: str, eos: bool, ids: list[int]) -> None:
    """EOS is not added after one that stands there already."""
    assert ids == make(add_eos_token=True).encode(text, special=True, eos=eos)


def test_model_without_bos(bytes_and: Callable[..., Any]) -> None:
    """Where a model has no BOS none is added."""
    tokenizer = load_tokenizer(bytes_and())
    assert (None, [*b"a"]) == (tokenizer.bos_id, tokenizer.encode("a"))


def test_marks(make: Callable[..., Tokenizer]) -> None:
    """Among control tokens, a marked text is text; elsewhere the mark is a character."""
    tokenizer = make(add_bos_token=True)
    ids = tokenizer.encode(f"<s>a<{MARK}s> <{MARK}|im_end|><|im_end|>", special=True)
    assert [BOS, *b"a<s> ", 260, *b"_end|>", END] == ids
    assert [BOS, *MARK.encode()] == tokenizer.encode(MARK)


def decoded(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    """The bytes that come one by one; the text of all is theirs."""
    data = b"".join(map(StreamDecoder(tokenizer).push_bytes, ids))
    assert data.decode("utf-8", "replace") == tokenizer.decode(ids)
    return data


@pytest.mark.parametrize("data", [b"\xe6\xad", b"\xff", b"a\x80b\xc3", bytes(range(256))])
def test_any_bytes(tokenizer: Tokenizer, data: bytes) -> None:
    """Bytes that are not UTF-8 become byte tokens and come back as they were."""
    ids = tokenizer.encode(data)
    assert ids == tokenizer.encode(data.decode("utf-8", "surrogateescape"))
    assert data == decoded(tokenizer, ids)


@given(data=st.binary(max_size=40))
def test_any_bytes_in_sentencepiece(data: bytes, vectors: Callable[..., Any]) -> None:
    """Byte tokens of SentencePiece keep every byte too."""
    tokenizer = vectors("phi-3").tokenizer
    assert data == decoded(tokenizer, tokenizer.encode(data))


@pytest.mark.parametrize("name", ["gpt-2", "phi-3", "bert-bge", "botchan-unigram"])
def test_half_a_pair(vectors: Callable[..., Any], name: str) -> None:
    """Half of a UTF-16 pair is no text: a typed error says where it is."""
    with pytest.raises(TokenizerError, match="position 2"):
        vectors(name).tokenizer.encode("ab\ud83d")


@pytest.mark.parametrize("ids", [[0, -1], [0, 10**9], [0, 262], [0, 1.0], [0, None], [0, "1"]])
def test_foreign_ids(tokenizer: Tokenizer, ids: list[Any]) -> None:
    """What is no id is refused, and its place named; a negative id does not count backwards."""
    for check in (tokenizer.check_ids, tokenizer.decode):
        with pytest.raises(TokenizerError, match=r"position 1\n  expected: 0 to 261"):
            check(ids)


def test_foreign_id(tokenizer: Tokenizer) -> None:
    """Single ids are checked as well."""
    with pytest.raises(TokenizerError, match="got: -1"):
        tokenizer.token_bytes(-1)


def test_ids_of_numpy(tokenizer: Tokenizer) -> None:
    """An array of ids will do."""
    assert tokenizer.decode(np.array([97, 98])) == "ab"


def test_token_bytes(tokenizer: Tokenizer) -> None:
    """Control tokens show on demand, user-defined ones always, as they stand."""
    tokens = (ord(" "), BOS, OWN)
    assert [tokenizer.token_bytes(i) for i in tokens] == [b" ", b"", b"<own>"]
    assert [tokenizer.token_bytes(i, special=True) for i in tokens] == [b" ", b"<s>", b"<own>"]


def test_decode_special(tokenizer: Tokenizer) -> None:
    """Decoding leaves control tokens out unless they are asked for."""
    ids = [BOS, *b"a", END, OWN]
    assert tokenizer.decode(ids) == "a<own>"
    assert tokenizer.decode(ids, special=True) == "<s>a<|im_end|><own>"


def test_long_text_with_specials(tokenizer: Tokenizer) -> None:
    """Signs that may start a special token but do not cost little."""
    text = "<" * 100_000
    assert [*text.encode()] == tokenizer.encode(text, special=True)


class Counting:
    """A coder that counts how often it is asked."""

    space_prefix = False

    def __init__(self) -> None:
        self.asked: list[str] = []

    def split(self, text: str) -> list[str]:
        return text.split(" ")

    def encode(self, piece: str) -> tuple[int, ...]:
        self.asked.append(piece)
        return (len(piece),)

    def text_of(self, token: str) -> bytes:
        return token.encode()


def test_only_short_pieces_are_kept(tokenizer: Tokenizer) -> None:
    """Words are encoded once; long pieces, which would fill the memory, anew each time."""
    coder = Counting()
    counted = attrs.evolve(tokenizer, coder=coder)
    long = "b" * 65
    assert counted.encode(f"a {long} a {long}") == [1, 65, 1, 65]
    assert coder.asked == ["a", long, long]

"""A vocabulary on its way from a folder to a file, and what fills it that is no tokenizer.json.

Reference: sentencepiece_model.proto of the sentencepiece project, for `tokenizer.model`.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.text.vocab import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, USER_DEFINED
from umbel.tools.convert.folder import Config

log = logging.getLogger("umbel.convert")

BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


@attrs.define
class Vocabulary:
    """The tokens by id, and all that the kind of tokenizer (`model`) needs beside them."""

    model: str
    tokens: dict[int, str]
    where: str
    kinds: dict[int, int] = attrs.Factory(dict)  # of those that are not normal
    scores: dict[int, float] | None = None
    keys: dict[str, Any] = attrs.Factory(dict)  # without `tokenizer.ggml.`
    # the ids that are put before ("bos") and after ("eos") a text, if the files say it
    added: dict[str, list[int]] | None = None
    roles: dict[str, int] = attrs.Factory(dict)  # where no other file names them
    spelt: dict[int, str] = attrs.Factory(
        dict
    )  # texts of the folder that GGUF spells otherwise

    def add(self, i: int, text: str, kind: int) -> None:
        """A token that was added: it is what it says, whatever stood there."""
        self.tokens[i], self.kinds[i] = text, kind
        self.spelt.pop(i, None)

    def ids(self) -> dict[str, int]:
        return {text: i for i, text in {**self.tokens, **self.spelt}.items()}


def added_kind(token: dict[str, Any]) -> int:
    return CONTROL if token.get("special") else USER_DEFINED


def word_pieces(texts: dict[int, str], unknown: str, where: str) -> Vocabulary:
    """WordPiece: GGUF marks what begins a word, and not what goes on."""
    goes_on = re.compile("##.+", re.DOTALL)
    tokens = {i: t[2:] if goes_on.fullmatch(t) else SPACE + t for i, t in texts.items()}
    found = Vocabulary("bert", tokens, where, spelt=dict(texts))
    for i, text in texts.items():
        if re.fullmatch(r"\[[A-Z]+\d*\]", text):
            found.add(i, text, UNKNOWN if text == unknown else CONTROL)
    return found


def vocab_txt(text: str, options: Config, where: str) -> Vocabulary:
    """BERT's list of tokens, a line each; how a text is cleaned stands in tokenizer_config."""
    options.only("tokenize_chinese_chars", True)
    lines = text.removesuffix("\n").split("\n")
    found = word_pieces({i: line.rstrip("\r") for i, line in enumerate(lines)}, "[UNK]", where)
    lower = options.get("do_lower_case", bool, True)
    accents = options.get("strip_accents", bool, lower)
    found.keys = {"normalizer.lowercase": lower, "normalizer.strip_accents": accents}
    ids = found.ids()
    if "[CLS]" in ids and "[SEP]" in ids:
        found.added = {"bos": [ids["[CLS]"]], "eos": [ids["[SEP]"]]}
    return found


def sentence_pieces(path: Path) -> Vocabulary:
    """The tokens, scores and rules of a `tokenizer.model`."""
    try:
        return _read_model(path)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        msg, do = "the file is no model of sentencepiece", "give tokenizer.json beside it"
        raise ModelFormatError(msg, where=path, got=error, do=do) from error


def _read_model(path: Path) -> Vocabulary:
    model = _fields(path.read_bytes())
    pieces = [dict(_fields(piece)) for n, piece in model if n == 1]
    trainer, rules = (dict(_fields(dict(model).get(n, b""))) for n in (2, 3))
    texts = {i: piece[1].decode() for i, piece in enumerate(pieces)}
    kind = {1: "t5", 2: "llama"}.get(trainer.get(3, 1))
    if kind is None or not texts:
        msg, expected = "a model of this kind is not supported", "unigram or BPE, with tokens"
        raise UnsupportedModelError(msg, where=path, expected=expected, got=trainer.get(3))
    found = Vocabulary(kind, texts, str(path))
    found.kinds = {i: int(piece.get(3, NORMAL)) for i, piece in enumerate(pieces)}
    found.scores = {i: float(piece.get(2, 0.0)) for i, piece in enumerate(pieces)}
    found.keys["add_space_prefix"] = bool(rules.get(3, 1))
    for n, role, default in ((41, "bos", 1), (42, "eos", 2), (43, "pad", -1)):
        if 0 <= trainer.get(n, default) < len(texts):
            found.roles[role] = trainer.get(n, default)
    charsmap, merges_spaces = rules.get(2, b"") + b"", bool(rules.get(4, 1))
    if kind == "t5":
        found.keys["remove_extra_whitespaces"] = merges_spaces
        if charsmap:
            found.keys["precompiled_charsmap"] = charsmap
    elif charsmap or merges_spaces:
        log.warning("%s: texts are normalised, which GGUF cannot say of this kind", path)
    return found


def _fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message of protocol buffers: their numbers and values."""
    return list(_read(data))


def _read(data: bytes) -> Iterator[tuple[int, Any]]:
    pos = 0
    while pos < len(data):
        tag, pos = _varint(data, pos)
        size = {1: 8, 5: 4}.get(tag & 7, 0)
        if tag & 7 == 0:
            value, pos = _varint(data, pos)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            size, pos = _varint(data, pos)
        if tag & 7 not in (1, 2, 5) or pos + size > len(data):
            msg = "it is truncated or malformed"
            raise ValueError(msg)
        raw, pos = data[pos : pos + size], pos + size
        yield tag >> 3, struct.unpack("<f", raw)[0] if tag & 7 == 5 else raw


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, pos = data[pos], pos + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, pos


def kind_of(text: str, unknown: str | None, has_bytes: bool) -> int:
    """The kind of a token where a file has no kinds."""
    if text == unknown:
        return UNKNOWN
    return BYTE if has_bytes and BYTE_TOKEN.fullmatch(text) else NORMAL

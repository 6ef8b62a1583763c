"""The tokenizer.json of the library `tokenizers`: which kind of tokenizer it describes.

GGUF names four kinds, and each has fixed rules; what a tokenizer.json does beyond those is
refused where it changes common texts, and told where it changes rare ones.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Iterator
from typing import Any, NoReturn

from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.text.vocab import NORMAL
from umbel.tools.convert.pretokenizer import pre_tokenizer_name
from umbel.tools.convert.vocabulary import Vocabulary, added_kind, kind_of, word_pieces

log = logging.getLogger("umbel.convert")

Json = dict[str, Any]
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


def tokenizer_json(data: Json, where: str) -> Vocabulary:
    """The vocabulary with its rules, and the tokens that were added."""
    try:
        model = data["model"]
        kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
        builders = {"WordPiece": _word_piece, "Unigram": _unigram}
        if kind == "BPE":
            by_bytes = _finds(data.get("pre_tokenizer"), "ByteLevel")
            builders["BPE"] = _byte_level if by_bytes else _sentence_piece
        if kind not in builders:
            msg, known = "a tokenizer of this kind is not supported", "BPE, Unigram, WordPiece"
            raise UnsupportedModelError(msg, where=where, expected=known, got=kind)
        found = builders[kind](data, model, where)
        _add_tokens(found, data.get("added_tokens") or [])
        found.added = _template(data.get("post_processor"), found)
    except MALFORMED as error:
        msg, got = "the tokenizer is malformed", f"{type(error).__name__}: {error}"
        raise ModelFormatError(msg, where=where, got=got) from error
    return found


def _add_tokens(found: Vocabulary, added: list[Json]) -> None:
    for token in added:
        i, text = int(token["id"]), str(token["content"])
        if found.kinds.get(i, NORMAL) == NORMAL or found.tokens.get(i) != text:
            found.add(i, text, added_kind(token))
    flags = ("single_word", "lstrip", "rstrip")
    strict = [repr(t["content"]) for t in added if any(t.get(flag) for flag in flags)]
    if strict and found.model != "bert":
        text = "%s: blanks around some tokens count otherwise than GGUF can say: %s"
        log.warning(text, found.where, ", ".join(strict))


def _refuse(what: str, where: str, got: Any) -> NoReturn:
    msg = f"the tokenizer has {what}, which GGUF cannot express"
    got = json.dumps(got, ensure_ascii=False)[:500]
    do = "where there is a tokenizer.model too, put tokenizer.json away"
    raise UnsupportedModelError(msg, where=where, got=got, do=do)


def _finds(tree: Any, kind: str) -> bool:
    return any(part.get("type") == kind for part in _parts(tree))


def _parts(tree: Any) -> Iterator[Json]:
    """The parts of a component, which may be a sequence of them."""
    if tree is None:
        return
    lists = [tree[k] for k in ("normalizers", "pretokenizers", "processors") if k in tree]
    for part in lists[0] if lists else ():
        yield from _parts(part)
    if not lists:
        yield tree


# the kinds


def _byte_level(data: Json, model: Json, where: str) -> Vocabulary:
    """BPE on bytes, as GPT-2 has it."""
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            _refuse(f"{key}", where, model[key])
    for part in _parts(data.get("normalizer")):
        if part["type"] != "NFC":
            _refuse("a normalizer", where, part)
        text = "%s: texts are normalised (NFC), which GGUF cannot say: others get other tokens"
        log.warning(text, where)
    found = Vocabulary("gpt2", {i: text for text, i in model["vocab"].items()}, where)
    whole = bool(model.get("ignore_merges"))
    found.keys["pre"] = pre_tokenizer_name(data["pre_tokenizer"], whole, where)
    found.keys["merges"] = [" ".join(pair) for pair in _merges(model)]
    return found


def _merges(model: Json) -> list[tuple[str, str]]:
    """The pairs in order, which are texts with a space between or lists of two."""
    pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    return [(str(left), str(right)) for left, right in pairs]


def _sentence_piece(data: Json, model: Json, where: str) -> Vocabulary:
    """BPE on characters, with byte tokens for the rest, as sentencepiece has it.

    GGUF has scores in the place of merges: a token's is the better the earlier it can be made.
    """
    if not model.get("byte_fallback"):
        _refuse("BPE without bytes", where, data.get("pre_tokenizer"))
    found = Vocabulary("llama", {i: text for text, i in model["vocab"].items()}, where)
    merges = _merges(model)
    _check_merges(found, data, merges)
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(merges):
        scores.setdefault(left + right, -float(rank))
    last = -float(len(merges))
    found.scores = {i: scores.get(text, last) for i, text in found.tokens.items()}
    unknown = model.get("unk_token")
    found.kinds = {i: kind_of(text, unknown, True) for i, text in found.tokens.items()}
    prefix, _ = _spaces(data, where)
    found.keys["add_space_prefix"] = prefix
    return found


def _check_merges(found: Vocabulary, data: Json, merges: list[tuple[str, str]]) -> None:
    """Scores say the same only if every two tokens that join to a token may be merged."""
    added = {token["content"] for token in data.get("added_tokens") or []}
    known, listed = set(found.tokens.values()), set(merges)
    for text in known - added:
        cuts = ((text[:i], text[i:]) for i in range(1, len(text)))
        for cut in cuts:
            if known.issuperset(cut) and cut not in listed:
                _refuse("tokens that may not become the one that they spell", found.where, cut)


def _unigram(data: Json, model: Json, where: str) -> Vocabulary:
    pieces = model["vocab"]
    found = Vocabulary("t5", {i: text for i, (text, _) in enumerate(pieces)}, where)
    found.scores = {i: float(score) for i, (_, score) in enumerate(pieces)}
    unk = model.get("unk_id")
    unknown = None if unk is None else found.tokens[unk]
    has_bytes = bool(model.get("byte_fallback"))
    found.kinds = {i: kind_of(text, unknown, has_bytes) for i, text in found.tokens.items()}
    prefix, merges_spaces = _spaces(data, where)
    found.keys |= {"add_space_prefix": prefix, "remove_extra_whitespaces": merges_spaces}
    for part in _parts(data.get("normalizer")):
        if part["type"] == "Precompiled":
            try:
                rules = base64.b64decode(part["precompiled_charsmap"], validate=True)
            except binascii.Error as error:
                _refuse(f"normalisation rules that are malformed ({error})", where, None)
            found.keys["precompiled_charsmap"] = rules
    return found


def _spaces(data: Json, where: str) -> tuple[bool, bool]:
    """Whether a space is put before a text, and whether several become one.

    Between them normalizer and pre-tokenizer make each space U+2581, and do nothing else.
    """
    prefix = marks = merges = False
    for part in _parts(data.get("normalizer")):
        match part:
            case {"type": "Prepend", "prepend": "\u2581"}:
                prefix = True
            case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                marks = True
            case {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " " | "\u2581"}:
                merges = True
                log.warning("%s: spaces at the ends of a text are left out in GGUF", where)
            case {"type": "Precompiled" | "Strip"} if data["model"]["type"] == "Unigram":
                pass
            case _:
                _refuse("a normalizer", where, part)
    for part in _parts(data.get("pre_tokenizer")):
        match part:
            case {"type": "Metaspace", "replacement": "\u2581"}:
                scheme = part.get("prepend_scheme", "always")
                prefix, marks = scheme != "never", True
                if prefix and not (merges and data["model"]["type"] == "Unigram"):
                    text = "%s: a text that starts with a space gets one more, as GGUF has it"
                    log.warning(text, where)
            case {"type": "WhitespaceSplit"} if data["model"]["type"] == "Unigram":
                merges = True
            case {"type": "Split", "pattern": {"String": " "}} if marks:
                pass  # no space is left to split at
            case _:
                _refuse("a pre-tokenizer", where, part)
    if not marks:
        _refuse("spaces that are not marked with U+2581", where, data.get("pre_tokenizer"))
    return prefix, merges


def _word_piece(data: Json, model: Json, where: str) -> Vocabulary:
    kind = data.get("normalizer") or {"type": None}
    if kind["type"] != "BertNormalizer" or not (
        kind["clean_text"] and kind["handle_chinese_chars"]
    ):
        _refuse("a normalizer", where, kind)
    if (data.get("pre_tokenizer") or {}).get("type") != "BertPreTokenizer":
        _refuse("a pre-tokenizer", where, data.get("pre_tokenizer"))
    rules = (
        model.get("continuing_subword_prefix", "##"),
        model.get("max_input_chars_per_word", 100),
    )
    if rules != ("##", 100):
        _refuse("rules for words", where, rules)
    texts = {i: text for text, i in model["vocab"].items()}
    found = word_pieces(texts, model["unk_token"], where)
    lower = bool(kind["lowercase"])
    accents = kind.get("strip_accents")
    found.keys["normalizer.lowercase"] = lower
    found.keys["normalizer.strip_accents"] = lower if accents is None else bool(accents)
    return found


# what is put around a text


def _template(tree: Any, found: Vocabulary) -> dict[str, list[int]] | None:
    """The ids before and after a text; None where the file does not say."""
    ids = found.ids()
    for part in _parts(tree):
        if part["type"] in ("BertProcessing", "RobertaProcessing"):
            return {"bos": [part["cls"][1]], "eos": [part["sep"][1]]}
        if part["type"] != "TemplateProcessing":
            continue
        around: dict[str, list[int]] = {"bos": [], "eos": []}
        side = "bos"
        for item in part["single"]:
            if "Sequence" in item:
                side = "eos"
            else:
                around[side].append(ids[item["SpecialToken"]["id"]])
        if max(map(len, around.values())) > 1:
            _refuse("several tokens before or after a text", found.where, part["single"])
        return around
    return None

"""From the metadata of a GGUF file to its tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import attrs
import numpy as np

from umbel.errors import UnsupportedModelError
from umbel.text.bpe import BytePairs, SpacedWords
from umbel.text.charsmap import CharsMap
from umbel.text.keys import Keys
from umbel.text.pretokenizers import BY_NAME, PreTokenizer
from umbel.text.spm import SentencePieces
from umbel.text.tokenizer import Coder, Matcher, Tokenizer
from umbel.text.unigram import Unigram
from umbel.text.vocab import CONTROL, UNKNOWN, USER_DEFINED, Vocab, read_vocab
from umbel.text.wordpiece import WordPieces

log = logging.getLogger("umbel.text")


@attrs.frozen
class _Family:
    """What a name in `tokenizer.ggml.model` stands for, and what holds without other keys."""

    model: str
    build: Callable[[Keys, Vocab, PreTokenizer], Coder]
    roles: Mapping[str, int]
    add_bos: bool = False
    add_eos: bool = False
    scored: bool = False


def load_tokenizer(metadata: Mapping[str, object], *, where: str = "") -> Tokenizer:
    """The tokenizer that a GGUF file describes; `where` (its path) is named in errors.

    A pre-tokenizer that is missing or unknown is replaced by "default" with a warning on the
    logger `umbel.text`: the text is then cut otherwise than the model learnt it.
    """
    keys = Keys(metadata, where)
    family = _family(keys)
    pre = _pre_tokenizer(keys) if family.model == "bpe" else BY_NAME["default"]
    vocab = read_vocab(keys, family.roles, family.scored)
    left, right = _stripping(keys, vocab)
    return Tokenizer(
        vocab=vocab,
        coder=family.build(keys, vocab, pre),
        model=family.model,
        pre=pre.name,
        add_bos=_adds(keys, vocab, "bos", family.add_bos or pre.add_bos),
        add_eos=_adds(keys, vocab, "eos", family.add_eos),
        control=Matcher(vocab.of_kind(CONTROL, UNKNOWN), left, right),
        defined=Matcher(vocab.of_kind(USER_DEFINED), left, right),
    )


def _family(keys: Keys) -> _Family:
    name = keys.text("model")
    if name is None:
        msg = "the file has no tokenizer"
        raise keys.error(msg, "model", " or ".join(_FAMILIES))
    if name not in _FAMILIES:
        msg = "this kind of tokenizer is not supported"
        where = keys.where or None
        expected = " or ".join(_FAMILIES)
        raise UnsupportedModelError(msg, where=where, expected=expected, got=name)
    return _FAMILIES[name]


def _pre_tokenizer(keys: Keys) -> PreTokenizer:
    name = "gemma4" if keys.text("model") == "gemma4" else keys.text("pre")
    if name in BY_NAME:
        return BY_NAME[name]
    what = "names no pre-tokenizer" if name is None else f"names an unknown one, {name!r}"
    log.warning(
        "%s: the tokenizer %s; 'default' is used, and texts may be cut otherwise than the "
        "model learnt them",
        keys.where or "this model",
        what,
    )
    return BY_NAME["default"]


def _adds(keys: Keys, vocab: Vocab, role: str, default: bool) -> bool:
    adds = keys.flag(f"add_{role}_token", default)
    if adds and role not in vocab.roles:
        place = keys.where or "this model"
        log.warning("%s: the tokenizer is to add %s, but has none", place, role.upper())
    return adds and role in vocab.roles


def _stripping(keys: Keys, vocab: Vocab) -> tuple[frozenset[int], frozenset[int]]:
    """Special tokens that swallow the blanks on their left, on their right.

    GGUF has no key for it: as in llama.cpp, models that need it are known by their names.
    """
    name = str(keys.metadata.get("general.name", "")).lower()
    arch = str(keys.metadata.get("general.architecture", ""))
    pre = keys.text("pre") or ""
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or arch in (
        "nomic-bert-moe",
        "jina-bert-v3",
    ):
        return frozenset({vocab.ids["<mask>"]} if "<mask>" in vocab.ids else ()), frozenset()
    if "modern-bert" in name and "[MASK]" in vocab.ids:
        return frozenset({vocab.ids["[MASK]"]}), frozenset()
    if "phi-3" in name or "phi3" in name:
        special = vocab.of_kind(CONTROL, UNKNOWN, USER_DEFINED)
        kept = ("<unk>", "<s>", "<|endoftext|>")
        return frozenset(), frozenset(i for text, i in special.items() if text not in kept)
    return frozenset(), frozenset()


def _byte_pairs(keys: Keys, vocab: Vocab, pre: PreTokenizer) -> Coder:
    merges = keys.strings("merges")
    if merges is None:
        msg = "a byte-pair tokenizer needs its merges"
        raise keys.error(msg, "merges", "an array of strings")
    pairs = BytePairs(vocab, pre, merges)
    if keys.text("model") == "whitespace":
        return SpacedWords(pairs, lower=keys.flag("normalizer.lowercase", False))
    return pairs


def _sentence_pieces(keys: Keys, vocab: Vocab, pre: PreTokenizer) -> Coder:
    return SentencePieces(vocab, keys.flag("add_space_prefix", True))


def _word_pieces(keys: Keys, vocab: Vocab, pre: PreTokenizer) -> Coder:
    lower = keys.flag("normalizer.lowercase", True)
    return WordPieces(vocab, lower, keys.flag("normalizer.strip_accents", lower))


def _unigram(keys: Keys, vocab: Vocab, pre: PreTokenizer) -> Coder:
    rules = keys.numbers("precompiled_charsmap")
    raw = None if rules is None else (rules.astype(np.int64) & 0xFF).astype(np.uint8).tobytes()
    return Unigram(
        vocab,
        charsmap=None if raw is None else CharsMap.parse(raw, keys.where),
        space_prefix=keys.flag("add_space_prefix", False),
        merge_spaces=keys.flag("remove_extra_whitespaces", False),
    )


_FAMILIES = {
    "gpt2": _Family("bpe", _byte_pairs, {}),
    "gemma4": _Family("bpe", _byte_pairs, {}),
    "whitespace": _Family("bpe", _byte_pairs, {}),
    "llama": _Family(
        "spm", _sentence_pieces, {"bos": 1, "eos": 2, "unk": 0}, add_bos=True, scored=True
    ),
    "bert": _Family(
        "wordpiece",
        _word_pieces,
        {"cls": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103},
        add_bos=True,
        add_eos=True,
    ),
    "t5": _Family(
        "unigram", _unigram, {"eos": 1, "unk": 2, "pad": 0}, add_eos=True, scored=True
    ),
}

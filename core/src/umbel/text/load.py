"""From the metadata of a GGUF file to its tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from numbers import Integral

import attrs

from umbel.errors import UnsupportedModelError
from umbel.text.bpe import BytePairs
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
    greedy = _greedy(keys, vocab)
    return Tokenizer(
        vocab=vocab,
        coder=family.build(keys, vocab, pre),
        model=family.model,
        pre=pre.name,
        bos_id=vocab.roles.get("bos"),
        eos_id=vocab.roles.get("eos"),
        unk_id=vocab.roles.get("unk"),
        pad_id=vocab.roles.get("pad"),
        sep_id=vocab.roles.get("sep"),
        eog_ids=vocab.ends,
        add_bos=_adds(keys, vocab, "bos", family.add_bos or pre.add_bos),
        add_eos=_adds(keys, vocab, "eos", family.add_eos),
        control=Matcher(vocab.of_kind(CONTROL, UNKNOWN), greedy),
        defined=Matcher(vocab.of_kind(USER_DEFINED), greedy),
    )


def _family(keys: Keys) -> _Family:
    name = keys.get("model", "")
    if not name:
        msg = "the file has no tokenizer"
        raise keys.error(msg, "model", " or ".join(_FAMILIES))
    if name not in _FAMILIES:
        msg, where = "this kind of tokenizer is not supported", keys.where or None
        raise UnsupportedModelError(msg, where=where, expected=" or ".join(_FAMILIES), got=name)
    return _FAMILIES[name]


def _pre_tokenizer(keys: Keys) -> PreTokenizer:
    name = "gemma4" if keys.get("model", "") == "gemma4" else keys.get("pre", "")
    if name not in BY_NAME:
        place, fault = (
            keys.where or "this model",
            f"is unknown: {name!r}" if name else "is missing",
        )
        text = (
            "%s: the pre-tokenizer %s; 'default' may cut texts otherwise than the model learnt"
        )
        log.warning(text, place, fault)
    return BY_NAME.get(name, BY_NAME["default"])


def _adds(keys: Keys, vocab: Vocab, role: str, default: bool) -> bool:
    adds = keys.get(f"add_{role}_token", default)
    if adds and role not in vocab.roles:
        place = keys.where or "this model"
        log.warning("%s: %s is to be added to texts, but there is none", place, role.upper())
    return adds and role in vocab.roles


def _greedy(keys: Keys, vocab: Vocab) -> frozenset[int]:
    """The special tokens that swallow the blanks after them: GGUF names Phi-3's nowhere."""
    name = str(keys.metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    special = vocab.of_kind(CONTROL, UNKNOWN, USER_DEFINED)
    return frozenset(
        i for t, i in special.items() if t not in ("<unk>", "<s>", "<|endoftext|>")
    )


def _byte_pairs(keys: Keys, vocab: Vocab, pre: PreTokenizer) -> Coder:
    return BytePairs(vocab, pre, keys.array("merges", str))


def _sentence_pieces(keys: Keys, vocab: Vocab, pre: PreTokenizer) -> Coder:
    return SentencePieces(vocab, keys.get("add_space_prefix", True))


def _word_pieces(keys: Keys, vocab: Vocab, pre: PreTokenizer) -> Coder:
    lower = keys.get("normalizer.lowercase", True)
    return WordPieces(vocab, lower, keys.get("normalizer.strip_accents", lower))


def _unigram(keys: Keys, vocab: Vocab, pre: PreTokenizer) -> Coder:
    charsmap = None
    if "precompiled_charsmap" in keys:
        rules = bytes(int(b) & 0xFF for b in keys.array("precompiled_charsmap", Integral))
        charsmap = CharsMap.parse(rules, keys.where)
    return Unigram(
        vocab,
        charsmap,
        space_prefix=keys.get("add_space_prefix", False),
        merge_spaces=keys.get("remove_extra_whitespaces", False),
    )


_T5 = {"eos": 1, "unk": 2, "pad": 0}
_LLAMA = {"bos": 1, "eos": 2, "unk": 0}
_BERT = {"cls": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103}
_FAMILIES = {
    "gpt2": _Family("bpe", _byte_pairs, {}),
    "gemma4": _Family("bpe", _byte_pairs, {}),
    "llama": _Family("spm", _sentence_pieces, _LLAMA, add_bos=True, scored=True),
    "bert": _Family("wordpiece", _word_pieces, _BERT, add_bos=True, add_eos=True),
    "t5": _Family("unigram", _unigram, _T5, add_eos=True, scored=True),
}

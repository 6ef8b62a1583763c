"""From the metadata of a GGUF file to its tokenizer."""

import logging
import math
import re
from collections.abc import Callable, Mapping

import attrs
import numpy as np

from umbel.errors import UnsupportedModelError
from umbel.text.bpe import BytePairs, SentencePieces
from umbel.text.pretokenizers import PreTokenizer, pre_tokenizers
from umbel.text.tokenizer import Coder, Matcher, Tokenizer
from umbel.text.unigram import CharsMap, Unigram
from umbel.text.vocab import CONTROL, UNKNOWN, USER_DEFINED, Keys, Vocab, index, read_vocab
from umbel.text.wordpiece import WordPieces

log = logging.getLogger("umbel.text")


@attrs.frozen
class _Kind:
    """A kind of tokenizer, and what holds for it where a file does not say otherwise."""

    build: Callable[[Keys, Vocab], Coder]
    roles: Mapping[str, int]
    add_bos: bool = False
    add_eos: bool = False


def load_tokenizer(metadata: Mapping[str, object], *, where: str = "the model") -> Tokenizer:
    """The tokenizer that a GGUF file describes; `where` (its path) is named in errors.

    A pre-tokenizer that is missing or unknown is replaced by "default" with a warning on the
    logger `umbel.text`: the text is then cut otherwise than the model learnt it.
    """
    keys = Keys(metadata, where)
    kind = _kind(keys)
    vocab = read_vocab(keys, kind.roles)
    coder = kind.build(keys, vocab)
    add_bos = coder.pre.add_bos if isinstance(coder, BytePairs) else kind.add_bos
    greedy = _greedy(keys, vocab)
    return Tokenizer(
        vocab=vocab,
        coder=coder,
        bos_id=vocab.roles.get("bos"),
        eos_id=vocab.roles.get("eos"),
        first=_added(keys, vocab, "bos", add_bos),
        last=_added(keys, vocab, "eos", kind.add_eos),
        control=Matcher(vocab.of_kind(CONTROL, UNKNOWN), greedy),
        defined=Matcher(vocab.of_kind(USER_DEFINED), greedy),
    )


def _kind(keys: Keys) -> _Kind:
    name, known = keys.get("model", ""), " or ".join(_KINDS)
    if not name:
        keys.refuse("the file has no tokenizer", "model", known)
    if name not in _KINDS:
        msg = "this kind of tokenizer is not supported"
        raise UnsupportedModelError(msg, where=keys.where, expected=known, got=name)
    return _KINDS[name]


def _added(keys: Keys, vocab: Vocab, role: str, default: bool) -> list[int]:
    adds = keys.get(f"add_{role}_token", default)
    ids = [vocab.roles[role]] if role in vocab.roles else []
    if adds and not ids:
        log.warning("%s: %s is to be added, but there is none", keys.where, role.upper())
    return ids if adds else []


def _greedy(keys: Keys, vocab: Vocab) -> frozenset[int]:
    """The special tokens that swallow the blanks after them: GGUF names Phi-3's nowhere."""
    name = str(keys.metadata.get("general.name", ""))
    if not re.search("phi-?3", name.lower()):
        return frozenset()
    special = vocab.of_kind(CONTROL, UNKNOWN, USER_DEFINED)
    others = ("<unk>", "<s>", "<|endoftext|>")
    return frozenset(i for text, i in special.items() if text not in others)


def _byte_pairs(keys: Keys, vocab: Vocab) -> Coder:
    return BytePairs(vocab, _pre_tokenizer(keys), index(keys.array("merges", str)))


def _pre_tokenizer(keys: Keys) -> PreTokenizer:
    name = "gemma4" if keys.get("model", "") == "gemma4" else keys.get("pre", "")
    known = pre_tokenizers()
    if name not in known:
        text = "%s: the pre-tokenizer is %s; 'default' may cut texts otherwise than learnt"
        log.warning(text, keys.where, f"unknown: {name!r}" if name else "missing")
    return known.get(name, known["default"])


def _sentence_pieces(keys: Keys, vocab: Vocab) -> Coder:
    # the best score first; tokens of equal score share a rank
    order = np.unique(np.negative(_scores(keys, vocab)), return_inverse=True)[1].tolist()
    ranks = {text: order[i] for text, i in vocab.plain.items()}
    return SentencePieces(vocab, ranks, keys.get("add_space_prefix", True))


def _word_pieces(keys: Keys, vocab: Vocab) -> Coder:
    lower = keys.get("normalizer.lowercase", True)
    return WordPieces(vocab, lower, keys.get("normalizer.strip_accents", lower))


def _unigram(keys: Keys, vocab: Vocab) -> Coder:
    charsmap = None
    if "precompiled_charsmap" in keys:
        rules = bytes(b & 0xFF for b in keys.array("precompiled_charsmap", int))
        charsmap = CharsMap.parse(rules, keys.where)
    space_prefix = keys.get("add_space_prefix", False)
    merge_spaces = keys.get("remove_extra_whitespaces", False)
    return Unigram(vocab, _scores(keys, vocab), charsmap, space_prefix, merge_spaces)


def _scores(keys: Keys, vocab: Vocab) -> list[float]:
    scores = keys.array("scores", float, len(vocab.tokens))
    if not all(map(math.isfinite, scores)):
        keys.refuse("a score is not a finite number", "scores")
    return scores


_BERT = {"cls": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103}
_KINDS = {
    "gpt2": _Kind(_byte_pairs, {}),
    "gemma4": _Kind(_byte_pairs, {}),
    "llama": _Kind(_sentence_pieces, {"bos": 1, "eos": 2, "unk": 0}, add_bos=True),
    "bert": _Kind(_word_pieces, _BERT, add_bos=True, add_eos=True),
    "t5": _Kind(_unigram, {"eos": 1, "unk": 2, "pad": 0}, add_eos=True),
}

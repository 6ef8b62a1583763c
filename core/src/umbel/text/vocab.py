"""The vocabulary in a GGUF file: tokens, their kinds and scores, and the ids that have a role.

Reference: the `tokenizer.ggml.*` keys of the GGUF specification (ggml-org/ggml, docs/gguf.md).
All that a tokenizer relies on later is checked here, once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from numbers import Integral, Real

import attrs
import numpy as np
from numpy.typing import NDArray

from umbel.errors import TokenizerError
from umbel.text.keys import Keys

SPACE = "\u2581"  # how SentencePiece writes a space inside a token

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_END_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_ROLES = {  # role: its key (spelt so in the specification)
    **{role: role for role in ("bos", "cls", "mask", *_END_ROLES)},
    "unk": "unknown",
    "pad": "padding",
    "sep": "seperator",
}
# Tokens that end a text or a turn, by name: files often declare only one of several.
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "[e~[",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>",
    "<|fim_repo|>", "<fim-repo>", "<|repo_name|>", "<reponame>", "<|file_sep|>",
)  # fmt: skip
# With these tokens around, <|end|> only ends one part of an answer.
_END_IS_INNER = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})


@attrs.frozen(eq=False)
class Vocab:
    """The tokens of a model, checked. `ends` are the ids that end a generation."""

    tokens: list[str]
    ids: dict[str, int]  # of equal tokens, the first one's id
    kinds: list[int]
    scores: NDArray[np.float32]
    roles: Mapping[str, int]
    ends: frozenset[int]
    where: str

    @cached_property
    def plain(self) -> dict[str, int]:
        """The tokens that text may become: no control, unknown or byte token among them."""
        closed = self.of_kind(CONTROL, UNKNOWN, BYTE)
        plain = dict(self.ids)
        for text in closed:
            del plain[text]
        return plain

    @cached_property
    def byte_ids(self) -> dict[int, int]:
        """The ids of the byte tokens <0x00> to <0xFF>, as far as there are any."""
        names = {b: f"<0x{b:02X}>" for b in range(256)}
        return {b: self.ids[name] for b, name in names.items() if name in self.ids}

    @cached_property
    def words_are_apart(self) -> bool:
        """Whether no token goes on past a word into the next space.

        Then a text may be cut before its spaces, and no token of the whole is lost.
        """
        return not re.search(f"[^{SPACE}\n]{SPACE}", "\n".join(self.tokens))

    def words(self, text: str) -> list[str]:
        """The text cut where no token can cross."""
        return (
            re.findall(f"{SPACE}*[^{SPACE}]+|{SPACE}+", text)
            if self.words_are_apart
            else [text]
        )

    def of_kind(self, *kinds: int) -> dict[str, int]:
        """The tokens of these kinds and their ids, without empty ones."""
        found = [i for i, kind in enumerate(self.kinds) if kind in kinds]
        return {self.tokens[i]: i for i in found if self.tokens[i]}

    def spell(self, text: str) -> list[int]:
        """Byte tokens for what is no token, or one unknown token where there are none."""
        data = to_bytes(text)
        spelt = [self.byte_ids[b] for b in data if b in self.byte_ids]
        return spelt if len(spelt) == len(data) else [self.unknown(data)]

    def unknown(self, data: bytes) -> int:
        if "unk" not in self.roles:
            msg = "the vocabulary has no token for a part of the text, nor an unknown token"
            raise TokenizerError(msg, where=self.where or None, got=data)
        return self.roles["unk"]


def to_bytes(text: str) -> bytes:
    """UTF-8; bytes that were not come back from the surrogates that stand for them."""
    return text.encode("utf-8", "surrogateescape")


def to_spaces(token: str) -> bytes:
    """What a token of SentencePiece adds to a text."""
    return to_bytes(token.replace(SPACE, " "))


def index(texts: list[str]) -> dict[str, int]:
    """The place of each text; of equal ones, the first's."""
    return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))


def read_vocab(keys: Keys, defaults: Mapping[str, int], scored: bool) -> Vocab:
    """The vocabulary in the metadata; `defaults` are the ids of roles that it does not name."""
    tokens = keys.array("tokens", str)
    if not tokens:
        msg = "the vocabulary is empty"
        raise keys.error(msg, "tokens")
    n, ids = len(tokens), index(tokens)
    roles = {role: i for role, i in defaults.items() if i < n}
    for role, key in _ROLES.items():
        if (i := keys.token_id(key, n)) is not None:
            roles[role] = i
    for role, stand_in in (("bos", "cls"), ("eos", "sep")):  # BERT's names for them
        if role not in roles and stand_in in roles:
            roles[role] = roles[stand_in]
    kinds = _read_kinds(keys, tokens)
    ends = _find_ends(ids, kinds, roles)
    return Vocab(tokens, ids, kinds, _read_scores(keys, n, scored), roles, ends, keys.where)


def _read_kinds(keys: Keys, tokens: list[str]) -> list[int]:
    if "token_type" not in keys:
        return [NORMAL] * len(tokens)
    kinds = keys.array("token_type", Integral, len(tokens))
    for i, kind in enumerate(kinds):
        # Strict: int("-1", 16) is a number, and a byte -1 would be the last of a table.
        if kind == BYTE and not re.fullmatch("<0x[0-9A-Fa-f]{2}>", tokens[i]):
            msg = "a byte token has a malformed name"
            raise keys.error(msg, "tokens", "<0x00> to <0xFF>", f"{tokens[i]!r} (token {i})")
    return kinds


def _read_scores(keys: Keys, n: int, needed: bool) -> NDArray[np.float32]:
    if "scores" not in keys and not needed:
        return np.zeros(n, np.float32)
    scores = np.array(keys.array("scores", Real, n), np.float32)
    if not np.isfinite(scores).all():
        msg = "a score is not a finite number"
        raise keys.error(msg, "scores")
    return scores


def _find_ends(
    ids: Mapping[str, int], kinds: list[int], roles: Mapping[str, int]
) -> frozenset[int]:
    """The ids that end a generation; those known by name become control tokens."""
    named = {text: ids[text] for text in _END_TEXTS if text in ids}
    if "</s>" in named and kinds[named["</s>"]] != CONTROL:
        del named["</s>"]  # it is also a tag of HTML
    if any(texts <= named.keys() for texts in _END_IS_INNER):
        named.pop("<|end|>", None)
    for i in named.values():
        kinds[i] = CONTROL
    return frozenset(named.values()) | {roles[role] for role in _END_ROLES if role in roles}

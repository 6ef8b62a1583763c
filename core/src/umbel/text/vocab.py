"""The vocabulary in a GGUF file: tokens, their kinds, and the ids that have a role.

Reference: the `tokenizer.ggml.*` keys of the GGUF specification (ggml-org/ggml, docs/gguf.md).
All that a tokenizer relies on later is checked here, once.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import attrs

from umbel.errors import TokenizerError

PREFIX = "tokenizer.ggml."
SPACE = "\u2581"  # how SentencePiece writes a space inside a token

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_END_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_ROLES = ("bos", "cls", "sep", "unk", "pad", "mask", *_END_ROLES)
_KEYS = {"sep": "seperator", "unk": "unknown", "pad": "padding"}  # spelt so in GGUF
# Tokens that end a text or a turn, by name: files often declare only one of several.
_END_TEXTS = """<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT>
    _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[
    <\uff5cend\u2581of\u2581sentence\uff5c> <|fim_pad|> <fim_pad> <fim-pad> <|fim_repo|>
    <fim-repo> <|repo_name|> <reponame> <|file_sep|>"""

T = TypeVar("T", str, bool, int)


@attrs.frozen
class Keys:
    """The metadata of one file; a `name` is a key without `tokenizer.ggml.`."""

    metadata: Mapping[str, object]
    where: str

    def refuse(
        self, what: str, name: str, expected: object = None, got: object = None
    ) -> NoReturn:
        where = f"{self.where}: {PREFIX}{name}"
        raise TokenizerError(what, where=where, expected=expected, got=got)

    def get(self, name: str, default: T) -> T:
        """The value, which must be of the default's type."""
        value = self.metadata.get(PREFIX + name, default)
        if type(value) is not type(default):
            got = f"{type(value).__name__} {value!r:.60}"
            self.refuse("the value has a wrong type", name, type(default).__name__, got)
        return value

    def array(self, name: str, kind: type, count: int | None = None) -> list[Any]:
        """The array, which must hold values of `kind`, and `count` of them."""
        values = self.metadata.get(PREFIX + name)
        # The elements of an array in GGUF are of one type: the first speaks for all.
        if not isinstance(values, list) or not all(isinstance(v, kind) for v in values[:1]):
            what = "the value is missing" if values is None else "the value has a wrong type"
            self.refuse(what, name, f"an array of {kind.__name__}", f"{values!r:.60}")
        if count not in (None, len(values)):
            what = "the array does not have one value for each token"
            self.refuse(what, name, count, len(values))
        return values

    def __contains__(self, name: str) -> bool:
        return PREFIX + name in self.metadata


@attrs.frozen(eq=False)
class Vocab:
    """The tokens of a model, checked. `ends` are the ids that end a generation."""

    tokens: list[str]
    ids: dict[str, int]  # of equal tokens, the first one's id
    kinds: list[int]
    roles: dict[str, int]
    ends: frozenset[int]
    where: str

    @cached_property
    def plain(self) -> dict[str, int]:
        """The tokens that text may become: no control, unknown or byte token among them."""
        plain = dict(self.ids)
        for text in self.of_kind(CONTROL, UNKNOWN, BYTE):
            del plain[text]
        return plain

    @cached_property
    def _special(self) -> list[int]:
        return [i for i, kind in enumerate(self.kinds) if kind != NORMAL]

    def of_kind(self, *kinds: int) -> dict[str, int]:
        """The tokens of these kinds and their ids, without empty ones."""
        among = range(len(self.kinds)) if NORMAL in kinds else self._special
        found = [i for i in among if self.kinds[i] in kinds]
        return {self.tokens[i]: i for i in found if self.tokens[i]}

    @cached_property
    def word(self) -> re.Pattern[str]:
        """Finds all of a text, cut where no token can cross."""
        if re.search(f"[^{SPACE}\n]{SPACE}", "\n".join(self.tokens)):
            return re.compile("(?s).+")  # some token goes on past a word into the next space
        return re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")

    def spell(self, data: bytes) -> list[int]:
        """Byte tokens for what is no token, or one unknown token where there are none."""
        names = [f"<0x{b:02X}>" for b in data]
        if all(name in self.ids for name in names):
            return [self.ids[name] for name in names]
        if "unk" not in self.roles:
            msg = "the vocabulary has no token for a part of the text, nor an unknown token"
            raise TokenizerError(msg, where=self.where, got=data)
        return [self.roles["unk"]]


def to_bytes(text: str) -> bytes:
    """UTF-8; bytes that were not come back from the surrogates that stand for them."""
    return text.encode("utf-8", "surrogateescape")


def to_spaces(token: str) -> bytes:
    """What a token of SentencePiece adds to a text."""
    return to_bytes(token.replace(SPACE, " "))


def index(texts: list[str]) -> dict[str, int]:
    """The place of each text; of equal ones, the first's."""
    return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))


def read_vocab(keys: Keys, defaults: Mapping[str, int]) -> Vocab:
    """The vocabulary in the metadata; `defaults` are the ids of roles that it does not name."""
    tokens = keys.array("tokens", str)
    if not tokens:
        keys.refuse("the vocabulary is empty", "tokens")
    ids = index(tokens)
    kinds = _read_kinds(keys, tokens)
    roles = _read_roles(keys, len(tokens), defaults)
    return Vocab(tokens, ids, kinds, roles, _find_ends(ids, kinds, roles), keys.where)


def _read_kinds(keys: Keys, tokens: list[str]) -> list[int]:
    if "token_type" not in keys:
        return [NORMAL] * len(tokens)
    kinds = [*keys.array("token_type", int, len(tokens))]
    for i, kind in enumerate(kinds if BYTE in kinds else ()):
        # Strict: int("-1", 16) is a number, and a byte -1 would be the last of a table.
        if kind == BYTE and not re.fullmatch("<0x[0-9A-Fa-f]{2}>", tokens[i]):
            what, got = "a byte token has a malformed name", f"{tokens[i]!r} (token {i})"
            keys.refuse(what, "tokens", "<0x00> to <0xFF>", got)
    return kinds


def _read_roles(keys: Keys, n: int, defaults: Mapping[str, int]) -> dict[str, int]:
    roles = {role: i for role, i in defaults.items() if i < n}
    for role in _ROLES:
        key = f"{_KEYS.get(role, role)}_token_id"
        if key in keys:
            roles[role] = i = keys.get(key, 0)
            if not 0 <= i < n:
                what = "a special token is not in the vocabulary"
                keys.refuse(what, key, f"0 to {n - 1}", i)
    for role, stand_in in (("bos", "cls"), ("eos", "sep")):  # BERT's names for them
        if stand_in in roles:
            roles.setdefault(role, roles[stand_in])
    return roles


def _find_ends(ids: dict[str, int], kinds: list[int], roles: dict[str, int]) -> frozenset[int]:
    """The ids that end a generation; those known by name become control tokens."""
    named = {ids[text] for text in _END_TEXTS.split() if text in ids}
    if "</s>" in ids and kinds[ids["</s>"]] != CONTROL:
        named.remove(ids["</s>"])  # it is also a tag of HTML
    for i in named:
        kinds[i] = CONTROL
    return frozenset(named | {roles[role] for role in _END_ROLES if role in roles})

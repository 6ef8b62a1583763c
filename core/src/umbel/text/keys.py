"""Typed look-ups in the metadata of a GGUF file, for the keys `tokenizer.ggml.*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs

from umbel.errors import TokenizerError

PREFIX = "tokenizer.ggml."
T = TypeVar("T", str, bool, int)


@attrs.frozen
class Keys:
    """The metadata of one file; a `name` is a key without `tokenizer.ggml.`."""

    metadata: Mapping[str, object]
    where: str

    def error(
        self, what: str, name: str, expected: object = None, got: object = None
    ) -> TokenizerError:
        where = f"{self.where}: {PREFIX}{name}".removeprefix(": ")
        return TokenizerError(what, where=where, expected=expected, got=got)

    def get(self, name: str, default: T) -> T:
        """The value, which must be of the default's type."""
        value = self.metadata.get(PREFIX + name, default)
        if type(value) is not type(default):
            msg, expected = "the value has a wrong type", type(default).__name__
            raise self.error(msg, name, expected, f"{type(value).__name__} {value!r:.60}")
        return value

    def token_id(self, name: str, count: int) -> int | None:
        """The id in `name`_token_id: one of `count` tokens, or None where there is no key."""
        key = f"{name}_token_id"
        if key not in self:
            return None
        value = self.get(key, 0)
        if not 0 <= value < count:
            msg = "a special token is not in the vocabulary"
            raise self.error(msg, key, f"0 to {count - 1}", value)
        return value

    def array(self, name: str, kind: type, count: int | None = None) -> list[Any]:
        """The array, which must hold values of `kind`, and `count` of them."""
        value = self.metadata.get(PREFIX + name)
        if isinstance(value, str) or not isinstance(value, Iterable):
            msg = "the value is missing" if value is None else "the value has a wrong type"
            raise self.error(msg, name, "an array", f"{value!r:.60}")
        values = list(value)
        # The elements of an array in GGUF are of one type: the first speaks for all.
        if values and not isinstance(values[0], kind):
            msg = "the array has elements of a wrong type"
            raise self.error(msg, name, kind.__name__, type(values[0]).__name__)
        if count not in (None, len(values)):
            msg = "the array does not have one value for each token"
            raise self.error(msg, name, count, len(values))
        return values

    def __contains__(self, name: str) -> bool:
        return PREFIX + name in self.metadata

"""Typed look-ups in the metadata of a GGUF file, for the keys `tokenizer.ggml.*`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from umbel.errors import TokenizerError

PREFIX = "tokenizer.ggml."


@attrs.frozen
class Keys:
    """The metadata of one file; a `name` is a key without `tokenizer.ggml.`."""

    metadata: Mapping[str, object]
    where: str

    def error(
        self, what: str, name: str, expected: object = None, got: object = None
    ) -> TokenizerError:
        where = f"{self.where}: {PREFIX}{name}" if self.where else PREFIX + name
        return TokenizerError(what, where=where, expected=expected, got=got)

    def text(self, name: str) -> str | None:
        value: str | None = self._one(name, str, "a string")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value: bool | None = self._one(name, bool, "true or false")
        return default if value is None else value

    def token_id(self, name: str, count: int) -> int | None:
        """The id in `name`_token_id: one of `count` tokens, or None where there is no key."""
        key = f"{name}_token_id"
        value: int | None = self._one(key, int, "a token id")
        if value is not None and not 0 <= value < count:
            msg = "a special token is not in the vocabulary"
            raise self.error(msg, key, f"0 to {count - 1}", value)
        return value

    def strings(self, name: str) -> list[str] | None:
        values = self._array(name)
        # The elements of an array in GGUF are of one type: the first speaks for all.
        if values and not isinstance(values[0], str):
            msg = "the array does not hold strings"
            raise self.error(msg, name, "strings", type(values[0]).__name__)
        return values

    def numbers(self, name: str) -> NDArray[Any] | None:
        values = self._array(name)
        if values is None:
            return None
        array = np.array(values) if values else np.zeros(0, np.int32)
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            msg = "the array does not hold numbers"
            raise self.error(msg, name, "numbers", array.dtype)
        return array

    def per_token(self, name: str, count: int) -> NDArray[Any] | None:
        """The numbers in `name`, of which there must be `count`."""
        array = self.numbers(name)
        if array is not None and len(array) != count:
            msg = "the array does not have one value for each token"
            raise self.error(msg, name, count, len(array))
        return array

    def _one(self, name: str, kind: type, expected: str) -> Any:
        value = self.metadata.get(PREFIX + name)
        if value is not None and type(value) is not kind:
            msg = "the value has a wrong type"
            raise self.error(msg, name, expected, f"{type(value).__name__} {value!r:.60}")
        return value

    def _array(self, name: str) -> list[Any] | None:
        value = self.metadata.get(PREFIX + name)
        if value is None or isinstance(value, list):
            return value
        if isinstance(value, np.ndarray):
            numbers: list[Any] = value.tolist()
            return numbers
        if isinstance(value, str) or not isinstance(value, Sequence):
            msg = "the value has a wrong type"
            raise self.error(msg, name, "an array", f"{type(value).__name__} {value!r:.60}")
        return list(value)

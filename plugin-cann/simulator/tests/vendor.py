"""The vendor's interface as plugin-cann/abi.toml has it, and types as tests compare them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ABI: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "abi.toml").read_text())
RENAMED = {"aclFloat16": "uint16_t", "aclrtMemGranularityOptions": "int", "_Bool": "bool"}


def kinds(arguments: str) -> list[str]:
    """`const int64_t *dims, uint64_t n` as ["int64_t*", "uint64_t"]; of `void` none."""
    found = []
    for argument in re.sub(r"\bconst\b", "", arguments).split(","):
        for word in re.findall(r"\w+", argument)[:1]:
            found.append(RENAMED.get(word, word) + "*" * argument.count("*"))
    return [] if found == ["void"] else found

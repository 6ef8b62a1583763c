"""What a file says of itself: its name, licence and types, and how hidden states are pooled."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import Any

from umbel.errors import ModelFormatError, UnsupportedModelError
from umbel.tools.convert.folder import Folder
from umbel.tools.convert.writer import TYPES, Entry

# The names of sentence-transformers, up to version 5 as flags; the numbers of GGUF.
POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}
FLAGS = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
_HEAD = re.compile(r"\A---\n(.*?)^---", re.DOTALL | re.MULTILINE)
_LICENCE = re.compile(r"^license:[ \t]*[\"']?([\w.\-]+)", re.MULTILINE)


def general_keys(folder: Folder, arch: str, entries: list[Entry]) -> dict[str, Any]:
    """The keys that every architecture has."""
    sizes: Counter[str] = Counter()
    for entry in entries:
        sizes[entry.dtype.name.upper()] += entry.nbytes
    keys: dict[str, Any] = {"general.architecture": arch, "general.type": "model"}
    keys["general.name"] = folder.path.resolve().name.encode("utf-8", "replace").decode()
    with suppress(ModelFormatError):  # what a README is written in is no reason to fail
        head = _HEAD.match(folder.text("README.md") or "")
        if head and (licence := _LICENCE.search(head[1])):
            keys["general.license"] = licence[1]
    keys["general.file_type"] = TYPES[sizes.most_common(1)[0][0]] if sizes else 0
    return keys


def pooling_keys(folder: Folder) -> dict[str, Any]:
    """How sentence-transformers makes one vector of a text, where the folder is one of its."""
    config = folder.config_of("1_Pooling/config.json")
    modules = folder.text("modules.json") or ""
    kinds = [kind.rpartition(".")[2] for kind in re.findall(r'"type":\s*"([\w.]+)"', modules)]
    if others := [
        kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")
    ]:
        msg, got = "the model has parts after pooling that GGUF cannot hold", ", ".join(others)
        raise UnsupportedModelError(msg, where=folder.path / "modules.json", got=got)
    if not config.values:
        return {}
    modes = [
        m for m, flag in FLAGS.items() if config.values.get(f"pooling_mode_{flag}") is True
    ]
    others = [
        k for k, v in config.values.items() if k.startswith("pooling_mode_") and v is True
    ]
    modes = [config.get("pooling_mode", str)] if "pooling_mode" in config.values else modes
    if len(modes) != 1 or len(others) > 1 or modes[0] not in POOLING:
        msg, got = "the way of pooling is not supported", ", ".join(modes or others) or "none"
        expected = f"one of {', '.join(POOLING)}"
        raise UnsupportedModelError(msg, where=config.where, expected=expected, got=got)
    return {"pooling_type": POOLING[modes[0]]}

"""Architectures: GGUF metadata to graph, one file each, all with one skeleton."""

from __future__ import annotations

from importlib import import_module

from umbel.errors import UnsupportedModelError
from umbel.models.base import Architecture, ModelDefinition, ModelGraph
from umbel.models.builder import StateShape, StepShape

__all__ = [
    "NAMES",
    "Architecture",
    "ModelDefinition",
    "ModelGraph",
    "StateShape",
    "StepShape",
    "architecture",
]

# general.architecture -> the module that builds it
NAMES = {
    name: name
    for name in (
        "bert",
        "gemma3",
        "gpt2",
        "granite",
        "lfm2",
        "llama",
        "mamba",
        "mamba2",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3moe",
    )
}


def architecture(name: str, *, where: object = None) -> Architecture:
    """The built-in architecture of that name; `UnsupportedModelError` lists those there are."""
    if name not in NAMES:
        msg = f"the architecture {name!r} is not supported"
        raise UnsupportedModelError(
            msg,
            where=where,
            expected="one of " + ", ".join(sorted(NAMES)),
            got=name,
            do="`umbel inspect` shows the file; a plugin can add the architecture",
        )
    found: Architecture = import_module(f"umbel.models.{NAMES[name]}").ARCHITECTURE
    return found

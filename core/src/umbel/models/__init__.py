"""Architectures: GGUF metadata to graph, one file each, all with one skeleton."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import attrs

from umbel.errors import UnsupportedModelError
from umbel.gguf import GGUFFile
from umbel.graph import Graph, Operation, Role, Tensor
from umbel.models.builder import Architecture, CacheRope, ModelBuilder, StateShape, StepShape
from umbel.models.hparams import Hparams, Meta, read_hparams

__all__ = [
    "NAMES",
    "Architecture",
    "ModelDefinition",
    "ModelGraph",
    "StateShape",
    "StepShape",
    "architecture",
]

NAMES = (  # of architectures, and of the modules that build them
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


@attrs.frozen(eq=False)
class ModelGraph:
    """The graph of one step, and what the engine must know to feed it."""

    graph: Graph
    output: Tensor  # logits (rows, n_vocab), or hidden states (N, n_embd)
    step: StepShape
    cache_ropes: tuple[CacheRope, ...]

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.graph.leaves(Role.INPUT)}

    @property
    def states(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.graph.leaves(Role.STATE)}


@attrs.frozen(eq=False)
class ModelDefinition:
    """A file whose architecture is known: makes graphs for steps of any shape."""

    file: GGUFFile
    architecture: Architecture
    hparams: Hparams
    ops: Mapping[str, Operation]

    @classmethod
    def of(
        cls, file: GGUFFile, architecture: Architecture, ops: Mapping[str, Operation]
    ) -> ModelDefinition:
        return cls(file, architecture, read_hparams(Meta(file)), ops)

    def graph(self, step: StepShape, state: StateShape) -> ModelGraph:
        """The graph of one step; missing or misshapen tensors are a `ModelFormatError`."""
        builder = ModelBuilder(self.ops, self.file, self.hparams, step, state)
        output = self.architecture.build(builder, Meta(self.file))
        graph = builder.graph([output, *builder.effects])
        return ModelGraph(graph, output, step, tuple(builder.cache_ropes))


def architecture(name: str, *, where: object = None) -> Architecture:
    """The built-in architecture of that name; `UnsupportedModelError` lists those there are."""
    if name not in NAMES:
        msg = f"the architecture {name!r} is not supported"
        raise UnsupportedModelError(
            msg,
            where=where,
            expected="one of " + ", ".join(NAMES),
            got=name,
            do="`umbel inspect` shows the file; a plugin can add the architecture",
        )
    found: Architecture = import_module(f"umbel.models.{name}").ARCHITECTURE
    return found

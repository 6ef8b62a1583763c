"""What an architecture is, and how its graph is made for one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from umbel.gguf import GGUFFile
from umbel.graph import Graph, Operation, Role, Tensor
from umbel.models.builder import CacheRope, ModelBuilder, StateShape, StepShape
from umbel.models.hparams import Hparams, Meta, read_hparams


@attrs.frozen
class Architecture:
    """A name from `general.architecture` and the function that writes the graph."""

    name: str
    build: Callable[[ModelBuilder, Meta], Tensor]
    pooled: bool = False  # the result is hidden states (all rows), not logits


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
    meta: Meta
    hparams: Hparams
    ops: Mapping[str, Operation]

    @classmethod
    def of(
        cls, file: GGUFFile, architecture: Architecture, ops: Mapping[str, Operation]
    ) -> ModelDefinition:
        meta = Meta(file)
        return cls(file, architecture, meta, read_hparams(meta), ops)

    def graph(self, step: StepShape, state: StateShape) -> ModelGraph:
        """The graph of one step; missing or misshapen tensors are a `ModelFormatError`."""
        builder = ModelBuilder(
            self.ops, self.file.tensors, self.hparams, step, state, str(self.file.path)
        )
        output = self.architecture.build(builder, self.meta)
        graph = builder.graph([output, *builder.effects])
        return ModelGraph(graph, output, step, tuple(builder.cache_ropes))

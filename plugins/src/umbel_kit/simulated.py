"""What rounding costs a model: its results by the references, with products that round what
they read of the activations as some devices do."""

from __future__ import annotations

import numpy as np
from umbel.batch import Feed
from umbel.gguf.types import F16, DType
from umbel.graph import Role, Tensor
from umbel.models import StepShape
from umbel.ops.rules import Array
from umbel.runner import Runner
from umbel.state import Sequence

from umbel_kit.reference import Activations, evaluate


def as_weights(x: Array, dtype: DType) -> Array:
    """In float16 where the weights are, and to 8 bits in blocks of 32 for quantised ones."""
    if dtype is F16:
        return x.astype(np.float16).astype(np.float32)
    return eight_bits(x) if dtype.quantised else x


def eight_bits(x: Array, block: int = 32, scale: float = 1.0) -> Array:
    """Whole multiples of a 127th of the largest of each block, and of `scale`."""
    *shape, n = x.shape
    padded = np.pad(x.reshape(-1, n), ((0, 0), (0, -n % block)))
    blocks = padded.reshape(len(padded), -1, block)
    step = np.abs(blocks).max(axis=-1, keepdims=True) / 127 * np.float32(scale)
    safe = np.where(step > 0, step, 1)
    rounded = np.round(blocks / safe) * step
    result: Array = rounded.reshape(len(padded), -1)[:, :n].reshape(*shape, n)
    return result


def logits(runner: Runner, ids: list[int], activations: Activations) -> Array:
    """The logits of all tokens of a text of one step; keys and values are kept as there."""
    sequence, n = Sequence(), len(ids)
    shape = runner.padded(StepShape(n, 1, n, n))
    definition, taken = runner.definition, runner.cache.begin(sequence, n)
    graph = definition.graph(shape, runner.state_shape).graph
    names = [t.name for t in graph.leaves(Role.INPUT)]
    feed = Feed(shape, [(sequence, ids)], [taken], True, runner.adapters.columns)
    given = feed.arrays(names)
    runner.cache.abort(taken)
    values: dict[Tensor, Array] = {t: given[t.name] for t in graph.leaves(Role.INPUT)}
    for t in graph.leaves(Role.WEIGHT):
        array = definition.file.array(t.attrs.get("of", t.name))
        values[t] = array[t.attrs.get("rows", ...)]
    for t in graph.leaves(Role.STATE):
        values[t] = np.zeros(t.shape, t.dtype.numpy)
    return evaluate(graph, values, activations=activations)[0][:n]

"""A decomposition run as a plan runs it, on the device under test and the host."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
from umbel.gguf.types import F32, DType, dequantise
from umbel.graph import Builder, Operation, Role, Tensor
from umbel.plan import Arenas, Placer, Plan, States, Target, Weights, make

from umbel_kit import cases, compare
from umbel_kit.cases import Case
from umbel_kit.reference import evaluate


def fault_of_decomposition(
    case: Case, target: Target, host: Target, ops: Mapping[str, Operation]
) -> str:
    """What is wrong with the decomposed operation; empty if nothing is."""
    graph = cases.graph(case, ops, lambda arg: arg.stored_in(F32))
    (node,) = graph.outputs
    arrays = _rounded_arrays(case, node, target.compute_dtype)
    states = {t: a.copy() for t, a in arrays.items() if t.role is Role.STATE}
    (expected,) = evaluate(graph, {**arrays, **states})
    builder = Builder(ops)
    assert node.op is not None
    assert node.op.decompose is not None
    result = node.op.decompose(builder, node, target.compute_dtype)
    kept = States()
    plan = _plan(builder, result, arrays, Placer([target, host], ops), kept)
    (actual,) = plan.run({t.name: a for t, a in arrays.items() if t.role is Role.INPUT})
    dtype = target.info.compute_dtype
    found = compare.fault(case.op, dtype, expected, actual, case.stored)
    for t, array in states.items():
        rows = kept.read_rows(t.name, np.arange(t.shape[0])).reshape(array.shape[0], -1)
        stored = rows.view(array.dtype).reshape(array.shape)
        wanted, got = (dequantise(x, t.dtype) for x in (array, stored))
        found = found or compare.fault("state", dtype, wanted, got, t.dtype.name)
    return found or ""


def _rounded_arrays(case: Case, node: Tensor, compute: DType) -> dict[Tensor, np.ndarray]:
    """The arrays of the leaves; activations are float32 that the device's dtype can hold."""
    arrays = {}
    for t, arg, array in zip(node.inputs, case.args, cases.arrays(case, compute), strict=True):
        plain = arg.role is Role.INPUT and arg.stored_in(F32) is F32
        values = dequantise(array, compute) if plain else array
        arrays[t.storage] = cases.laid_out(arg, values)
    return arrays


def _plan(
    builder: Builder,
    result: Tensor,
    arrays: Mapping[Tensor, np.ndarray],
    placer: Placer,
    states: States,
) -> Plan:
    leaves = {t.name: t for t in arrays}
    graph = builder.graph([result])
    file = SimpleNamespace(tensors=leaves, array=lambda name: arrays[leaves[name]])
    weights = Weights(file)  # type: ignore[arg-type]  # as much of a file as it asks for
    for name, home in placer.homes([graph]).items():
        states.add(leaves[name], home)
        states.write_rows(name, np.arange(leaves[name].shape[0]), _bytes(arrays[leaves[name]]))
    return make(graph, placer, weights, states, Arenas())


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)

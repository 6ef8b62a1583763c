"""Place and decompose together: which device computes each node, in which form, and why.

Devices are asked in the order of preference about the node in their own compute dtype; then
about its decomposition, which counts only if every piece is claimed; the last device (the host)
takes what is left. All users of one state go to one device. Small islands between two stretches
of one device are absorbed, after the sweeps of ggml's scheduler. The graph is never changed: a
new one is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from umbel.errors import DeviceError
from umbel.gguf.types import BF16, F16, F32, DType
from umbel.graph import Builder, Graph, Operation, Role, RowsForm, Tensor
from umbel.plan.target import Target

FLOATS = (F32, F16, BF16)
ISLAND = 8  # nodes at most in a stretch that is absorbed


@attrs.frozen(eq=False)
class Placed:
    """One node of the placed graph."""

    node: Tensor
    target: Target
    origin: str  # the label of the model's node it comes from
    reason: str


@attrs.frozen(eq=False)
class RowWrite:
    """Rows that the plan writes into a state after the step."""

    state: Tensor
    rows: Tensor
    ids: Tensor


@attrs.frozen(eq=False)
class Placement:
    """The placed graph: nodes in order, the outputs asked for, writes left to the plan."""

    nodes: tuple[Placed, ...]
    outputs: tuple[Tensor, ...]
    row_writes: tuple[RowWrite, ...]
    homes: Mapping[str, Target]  # of the states, by name
    refusals: Mapping[str, str]  # "node on device" -> why not


@attrs.frozen(eq=False)
class Claim:
    """How a device would compute a node: these pieces; the node's value is `result`."""

    pieces: tuple[Tensor, ...]
    result: Tensor
    writes: tuple[tuple[Tensor, Tensor, Tensor], ...]
    reason: str


class Placer:
    """Asks devices about nodes, and remembers what they said."""

    def __init__(self, targets: Sequence[Target], ops: Mapping[str, Operation]) -> None:
        self.targets = list(targets)
        self.ops = ops
        self.refusals: dict[str, str] = {}
        self._answers: dict[Any, str | None] = {}

    # questions

    def claim(self, node: Tensor, target: Target) -> Claim | str:
        """How `target` would compute `node`, or why it cannot."""
        why = self._ask(node, target)
        if why is None:
            return Claim((node,), node, (), "runs there")
        for form in (node.op.decompose, node.op.rows_form) if node.op else ():
            if form is None:
                continue
            builder = Builder(self.ops)
            made = form(builder, node, target.compute_dtype)
            whole = made if isinstance(made, RowsForm) else RowsForm(made, ())
            ends = [whole.result, *(rows for _, rows, _ in whole.writes)]
            pieces = self._claim_pieces(builder.graph(ends).nodes, target)
            if not isinstance(pieces, str):
                kind = "decomposed, rows written later" if whole.writes else "decomposed"
                return Claim(pieces, whole.result, whole.writes, f"{kind}: {why}")
            why = f"{why}; {pieces}"
        return why

    def _claim_pieces(
        self, nodes: Iterable[Tensor], target: Target
    ) -> tuple[Tensor, ...] | str:
        pieces: list[Tensor] = []
        for node in nodes:
            if node.op is None or node.op.view:
                continue
            why = self._ask(node, target)
            if why is not None:
                if node.op.decompose is None:
                    return f"{node.op.name}: {why}"
                builder = Builder(self.ops)
                result = node.op.decompose(builder, node, target.compute_dtype)
                inner = self._claim_pieces(builder.graph([result]).nodes, target)
                if isinstance(inner, str):
                    return f"{node.op.name}: {why}; {inner}"
                pieces += [*inner, _alias(node, result)]
            else:
                pieces.append(node)
        return tuple(pieces)

    def _ask(self, node: Tensor, target: Target) -> str | None:
        op = node.op
        assert op is not None
        key = (target.name, op.name, _signature(node), *map(_signature, node.inputs))
        key += tuple(sorted(node.attrs.items()))
        if key not in self._answers:
            self._answers[key] = target.op_supported(target.device, retyped(node, target))
        return self._answers[key]

    # the choice

    def choose(self, graph: Graph, homes: Mapping[str, Target]) -> dict[Tensor, Target]:
        """A device for each computed node; states already at home stay there."""
        computed = [n for n in graph.nodes if n.op is not None and not n.op.view]
        groups = self.homes([graph], homes)
        chosen: dict[Tensor, Target] = {}
        for node in computed:
            states = _states(node)
            if states:
                chosen[node] = groups[states[0].name]
            else:
                chosen[node] = next(t for t in self.targets if self._can(node, t))
        self._absorb(computed, chosen)
        return chosen

    def homes(
        self, graphs: Iterable[Graph], known: Mapping[str, Target] | None = None
    ) -> dict[str, Target]:
        """Where each state lives: the first device that runs all its users in all graphs."""
        users: dict[str, list[Tensor]] = {}
        for graph in graphs:
            for node in graph.nodes:
                for state in _states(node) if node.op and not node.op.view else ():
                    users.setdefault(state.name, []).append(node)
        homes = dict(known or {})
        for name, nodes in users.items():
            candidates = [homes[name]] if name in homes else self.targets
            home = next((t for t in candidates if all(self._can(n, t) for n in nodes)), None)
            if home is None:
                msg = f"no device can run all that uses the state {name!r}"
                why = "; ".join(v for k, v in self.refusals.items() if nodes[0].label in k)
                raise DeviceError(msg, got=why or None, do="choose another device")
            homes[name] = home
        return homes

    def _can(self, node: Tensor, target: Target) -> bool:
        claim = self.claim(node, target)
        if isinstance(claim, str):
            self.refusals[f"{node.label} on {target.name}"] = claim
        return not isinstance(claim, str)

    def _absorb(self, nodes: list[Tensor], chosen: dict[Tensor, Target]) -> None:
        """Moves short stretches without weights or state to the device around them."""
        runs: list[list[Tensor]] = []
        for node in nodes:
            if runs and chosen[runs[-1][0]] is chosen[node]:
                runs[-1].append(node)
            else:
                runs.append([node])
        for before, run, after in zip(runs, runs[1:], runs[2:], strict=False):
            around = chosen[before[0]]
            if around is not chosen[after[0]] or len(run) > ISLAND or any(map(_heavy, run)):
                continue
            if all(self._can(n, around) for n in run):
                chosen.update(dict.fromkeys(run, around))


def _alias(node: Tensor, result: Tensor) -> Tensor:
    """A marker without an operation: the value of `node` is that of `result`."""
    return Tensor(node.shape, node.dtype, inputs=(node, result), name="alias")


def _signature(t: Tensor) -> tuple[object, ...]:
    return (t.shape, t.dtype.name, t.storage.role, t.strides)


def _states(node: Tensor) -> list[Tensor]:
    return [s for t in node.inputs if (s := t.storage).role is Role.STATE]


def _heavy(node: Tensor) -> bool:
    weights = (t for t in node.inputs if t.storage.role is Role.WEIGHT)
    return bool(_states(node)) or any(len(t.shape) > 1 for t in weights)


def retyped(node: Tensor, target: Target) -> Tensor:
    """The node as `target` would see it: activations in its compute dtype, weights as
    stored."""
    assert node.op is not None
    inputs = tuple(_seen(t, target) for t in node.inputs)
    return attrs.evolve(
        node, dtype=result_dtype(node, target), inputs=inputs, strides=(), base=None, offset=0
    )


def _seen(t: Tensor, target: Target) -> Tensor:
    dtype = local_dtype(t, target)
    if dtype is t.dtype:
        return t
    scaled = tuple(s * dtype.block_bytes // t.dtype.block_bytes for s in t.strides)
    strides = () if t.is_contiguous else scaled
    return attrs.evolve(t, dtype=dtype, strides=strides, base=None, offset=0)


def local_dtype(t: Tensor, target: Target) -> DType:
    """The dtype that `t` has in the memory of `target`."""
    role = t.storage.role
    if role is Role.WEIGHT:
        return target.buffer_type.accepts(t.dtype)
    if role is Role.STATE or t.dtype not in FLOATS:
        return t.dtype
    return target.compute_dtype


def result_dtype(node: Tensor, target: Target) -> DType:
    if node.op is not None and (node.op.writes or node.dtype not in FLOATS):
        return node.dtype
    return target.compute_dtype


def constant_as(t: Tensor, dtype: DType) -> Tensor:
    """A constant in another float dtype."""
    assert t.data is not None
    if dtype.numpy is None:  # bfloat16: the upper half of a float32
        bits = np.ascontiguousarray(t.data, "<f4").view("<u4")
        data = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    else:
        data = t.data.astype(dtype.numpy)
    return Tensor(t.shape, dtype, Role.CONST, t.name, data=data)

"""Place and decompose together: which device computes each node, in which form, and why.

Devices are asked in the order of preference about the node in their own compute dtype; then
about its decomposition, which counts only if every piece is claimed; the last device (the host)
takes what is left. All users of one state go to one device. Small islands between two stretches
of one device are absorbed, after the sweeps of ggml's scheduler.
"""

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from umbel.errors import DeviceError, GraphError
from umbel.gguf.types import BF16, F16, F32, I32, DType
from umbel.graph import Builder, Graph, Operation, Role, RowsForm, Tensor
from umbel.plan.memory import Target
from umbel.plan.stages import layer_of

Choice = tuple[Target, str]  # where a node goes, and why not to the first that would take it
FLOATS = (F32, F16, BF16)
FIXED = (Role.WEIGHT, Role.CONST)
FORMS = {"decompose": "decomposed", "rows_form": "the plan writes its rows"}
ISLAND = 8  # nodes at most in a stretch that is absorbed


@attrs.frozen
class Verdict:
    """What a device said of a node: the form in which it takes it, and why that one."""

    form: str | None  # "" as it is, "decompose", "rows_form"; None: not at all
    reason: str


class Placer:
    """Asks devices about nodes, and remembers what they said."""

    def __init__(
        self,
        targets: Sequence[Target],
        ops: Mapping[str, Operation],
        layers: Sequence[Target] = (),
    ) -> None:
        self.targets = list(targets)
        self.ops = ops
        self.layers = layers  # the preferred device of each; none: the first for all
        self._verdicts: dict[Any, Verdict] = {}
        self._judged = weakref.WeakKeyDictionary[Tensor, dict[Any, Verdict]]()
        self._at_once: weakref.WeakSet[Tensor] = weakref.WeakSet()  # no writes after the step
        self._ahead: weakref.WeakSet[Tensor] = weakref.WeakSet()  # pieces without activations
        self._layer = weakref.WeakKeyDictionary[Tensor, int]()

    # questions

    def judge(self, node: Tensor, target: Target) -> Verdict:
        """Whether and how `target` computes `node`."""
        assert node.op is not None
        later = node.op.rows_form is not None and node not in self._at_once
        known = self._judged.setdefault(node, {})
        if (target, later) not in known:
            known[target, later] = self._judge_like(node, target, later)
        return known[target, later]

    def _judge_like(self, node: Tensor, target: Target, later: bool) -> Verdict:
        """The verdict on all nodes that are like this one."""
        seen = (node, *node.inputs)
        dtypes = [(t.dtype, local_dtype(t, target)) for t in seen]
        kinds = [(t.shape, t.strides, t.role, *self._origin(t.storage)) for t in seen]
        key = (target, later, node.op, frozenset(node.attrs.items()), *dtypes, *kinds)
        if key not in self._verdicts:
            self._verdicts[key] = self._ask(node, target, later)
        return self._verdicts[key]

    def _ask(self, node: Tensor, target: Target, later: bool) -> Verdict:
        assert node.op is not None
        why = target.hooks.op_supported(target.device, retyped(node, target))
        if why is None:
            return Verdict("", "")
        reasons = [why]
        for form in ("decompose", "rows_form") if later else ("decompose",):
            if getattr(node.op, form) is not None:
                refused = self._refused(node, target, form)
                if refused is None:
                    return Verdict(form, f"{FORMS[form]}: {target.name}: {why}")
                reasons.append(refused)
        return Verdict(None, "; ".join(reasons))

    def expand(
        self, node: Tensor, target: Target, form: str
    ) -> tuple[tuple[Tensor, ...], RowsForm]:
        """What `node` becomes in that form: its pieces, and the result."""
        builder = Builder(self.ops)
        made = getattr(node.op, form)(builder, node, target.compute_dtype)
        result = made if isinstance(made, RowsForm) else RowsForm(made, ())
        ends = [result.result, *(rows for _, rows, _ in result.writes)]
        pieces = computed(builder.graph(ends))
        self._at_once.update(pieces)
        for piece in pieces:
            if all(self._origin(t.storage)[1] for t in piece.inputs):
                self._ahead.add(piece)
        return pieces, result

    def _origin(self, storage: Tensor) -> tuple[Role, bool]:
        """What a storage is, and whether it is known before the step, in full precision."""
        role = storage.role
        if role is Role.NODE:
            return role, storage in self._ahead
        return role, role in FIXED or (role is Role.INPUT and storage.dtype is I32)

    def place_of(self, piece: Tensor, target: Target) -> Target | None:
        """Who computes a piece of what `target` takes: if not that, for what follows from
        weights and the integers of a step alone the host, before all else; or nobody."""
        if self._can(piece, target):
            return target
        return self.targets[-1] if piece in self._ahead else None

    def _refused(self, node: Tensor, target: Target, form: str) -> str | None:
        try:
            pieces, result = self.expand(node, target, form)
        except GraphError as error:
            return f"it cannot be {FORMS[form]}: {error.what}"
        if any(ids.role is not Role.INPUT for _, _, ids in result.writes):
            return "the host does not know where the rows go"
        for piece in pieces:
            if self.place_of(piece, target) is None:
                return f"{piece.label}: {self.judge(piece, target).reason}"
        return None

    def _can(self, node: Tensor, target: Target) -> bool:
        return self.judge(node, target).form is not None

    # the choice

    def choose(self, graph: Graph, homes: Mapping[str, Target]) -> dict[Tensor, Choice]:
        """A device for each computed node; `homes` are those of the states, asked before."""
        nodes = computed(graph)
        chosen = {node: self._choose(node, homes) for node in nodes}
        self._absorb(nodes, chosen)
        return chosen

    def _choose(self, node: Tensor, homes: Mapping[str, Target]) -> Choice:
        candidates = order = self._preferred(node)
        if states := states_of(node):
            home = homes[states[0].name]
            candidates = [home] if home in self.targets else []  # another one's, for prefill
            candidates += [t for t in order if t is not home and t.reads(home)]
        for target in candidates:
            if self._can(node, target):
                better = order[: order.index(target)]
                why = self._reasons(node, better)
                if better and not why:
                    why = f"where {states[0].name} lives"
                return target, why
        msg = f"no device can run {node.label}"
        raise DeviceError(msg, got=self._reasons(node, candidates), do="choose another device")

    def _find_layers(self, graph: Graph) -> None:
        """A node is of the last layer that anything it follows from is of."""
        for t in graph.nodes if self.layers else ():
            before = (self._layer.get(i, layer_of(i)) for i in t.inputs)
            self._layer[t] = max((0, *before))

    def _preferred(self, node: Tensor) -> list[Target]:
        """The devices in the order in which they are asked."""
        if not self.layers:
            return self.targets
        first = self.layers[min(self._layer[node], len(self.layers) - 1)]
        return [first, *(t for t in self.targets if t is not first)]

    def _reasons(self, node: Tensor, targets: Iterable[Target]) -> str:
        verdicts = {target.name: self.judge(node, target) for target in targets}
        return "; ".join(f"{at}: {v.reason}" for at, v in verdicts.items() if v.form is None)

    def homes(
        self, graphs: Sequence[Graph], known: Mapping[str, Target] | None = None
    ) -> dict[str, Target]:
        """Where each state lives: the first device that runs all its users in all graphs."""
        homes = dict(known or {})
        for graph in graphs:
            self._find_layers(graph)
        for names, nodes in self._users(graphs):
            if not names <= homes.keys():
                order = self._preferred(nodes[0])
                fit = (t for t in order if all(self._can(node, t) for node in nodes))
                home = next(fit, self.targets[-1])
                homes = dict.fromkeys(names, home) | homes
        return homes

    def _users(self, graphs: Iterable[Graph]) -> list[tuple[set[str], list[Tensor]]]:
        """States and the nodes that use them; states that share a user stay together."""
        groups: list[tuple[set[str], list[Tensor]]] = []
        for graph in graphs:
            last: dict[Tensor, Tensor] = {}
            for node in computed(graph):
                states = states_of(node)
                # what is written after the step comes too late for a node that follows
                self._at_once.update(last[s] for s in states if s in last)
                last.update(dict.fromkeys(states, node))
                names, users = {s.name for s in states}, [node]
                for group in [g for g in groups if g[0] & names]:
                    groups.remove(group)
                    names, users = names | group[0], group[1] + users
                if names:
                    groups.append((names, users))
        return groups

    def _absorb(self, nodes: Iterable[Tensor], chosen: dict[Tensor, Choice]) -> None:
        """Moves short stretches without weights or state to the device around them."""
        by_device = itertools.groupby(nodes, lambda node: chosen[node][0].name)
        runs = [list(run) for _, run in by_device]
        for before, run, after in zip(runs, runs[1:], runs[2:], strict=False):
            around, _ = chosen[before[0]]
            closed = around is chosen[after[0]][0] and len(run) <= ISLAND
            if closed and not any(map(_heavy, run)) and all(self._can(n, around) for n in run):
                why = f"saves copies: what is around it runs on {around.name}"
                chosen.update(dict.fromkeys(run, (around, why)))


def computed(graph: Graph) -> tuple[Tensor, ...]:
    """The nodes that are not just a window on another's memory."""
    return tuple(n for n in graph.nodes if n.op is not None and not n.op.view)


def states_of(node: Tensor) -> list[Tensor]:
    """The states that a node reads or writes, each once."""
    storages = dict.fromkeys(t.storage for t in node.inputs)
    return [s for s in storages if s.role is Role.STATE]


def _heavy(node: Tensor) -> bool:
    weights = (t for t in node.inputs if t.storage.role is Role.WEIGHT)
    return bool(states_of(node)) or any(len(t.shape) > 1 for t in weights)


def retyped(node: Tensor, target: Target) -> Tensor:
    """The node as `target` would see it: activations in its compute dtype, weights as they
    are there."""
    assert node.op is not None
    inputs = [_seen(t, target) for t in node.inputs]
    named = {"name": node.name, "stored_as": local_dtype(node, target), **node.attrs}
    return Builder({}).apply(node.op, *inputs, **named)


def _seen(t: Tensor, target: Target) -> Tensor:
    dtype = local_dtype(t, target)
    if dtype is t.dtype:
        return t
    if t.base is not None:
        return retyped(t, target)
    return attrs.evolve(t, dtype=dtype, strides=())


def local_dtype(t: Tensor, target: Target) -> DType:
    """The dtype that `t` has in the memory of `target`."""
    role = t.storage.role
    if role is Role.WEIGHT:
        return target.accepts(t.storage)
    if role is Role.STATE or t.dtype not in FLOATS:
        return t.dtype
    return target.compute_dtype

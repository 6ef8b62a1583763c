"""What runs where: operations and dtypes against devices, as a table for documentation.

Each cell is the device's answer to all cases of the conformance suite of that kind, as a plan
asks for it: "yes", "decomposed" (from simpler operations that the device has), "rows later"
(the plan writes its rows of state after the step) or "no"; where the cases differ, "in part". A
reason is the one that decides: of an operation that could be decomposed, why that fails too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from umbel.errors import GraphError
from umbel.gguf.types import BY_NAME, F32
from umbel.graph import Operation, Role, Tensor
from umbel.plan import Placer, Target
from umbel.plan.place import retyped

from umbel_kit import cases
from umbel_kit.cases import Case

FORMS = {"": "yes", "decompose": "decomposed", "rows_form": "rows later", None: "no"}
BEGIN = "<!-- umbel-kit coverage: what follows is generated -->"
WEIGHTS = "weights"
_MEMORY = {Role.WEIGHT: WEIGHTS, Role.STATE: "state"}
Kind = tuple[str, str]  # (weights, state or nothing; the dtype)
NONE: Kind = ("", "")
MANY = 8  # dtypes in a row that are not listed


def table(
    targets: Sequence[Target], ops: Mapping[str, Operation], of: Sequence[Case] = cases.CASES
) -> str:
    """The page's generated part, in Markdown."""
    placer = Placer(targets, ops)
    of = [case for case in of if all(0 not in arg.shape for arg in case.args)]  # or all is easy
    heads = ["operation", "of", *(f"`{t.name}` ({t.info.compute_dtype})" for t in targets)]
    lines = [BEGIN, "", _row(heads), _row(["---"] * len(heads))]
    for op in dict.fromkeys(case.op for case in of):
        by_kind = _by_kind([case for case in of if case.op == op])
        for kinds, answers in _answers(by_kind, placer):
            lines.append(_row([f"`{op}`", _named(kinds, by_kind), *answers]))
    weights = dict.fromkeys(dtype for memory, dtype in map(_kind, of) if memory == WEIGHTS)
    return "\n".join([*lines, "", f"The types of weights: {', '.join(weights)}.", ""])


def _row(cells: Iterable[str]) -> str:
    """In one line, whatever a reason holds."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def _by_kind(of: Sequence[Case]) -> dict[Kind, list[Case]]:
    """The cases of an operation, apart where what it reads comes in more than one dtype."""
    by_kind: dict[Kind, list[Case]] = {}
    for case in of:
        by_kind.setdefault(_kind(case), []).append(case)
    return by_kind if len({dtype for _, dtype in by_kind if dtype}) > 1 else {NONE: list(of)}


def _kind(case: Case) -> Kind:
    """Which memory besides activations the case reads or changes, and in what dtype."""
    stored = ((_MEMORY[a.role], a.dtype) for a in case.args if a.role in _MEMORY and a.dtype)
    return next(stored, NONE)


def _answers(
    by_kind: Mapping[Kind, Sequence[Case]], placer: Placer
) -> list[tuple[list[Kind], tuple[str, ...]]]:
    """The answers of all devices, and the kinds of cases that they give them to."""
    alike: dict[tuple[str, ...], list[Kind]] = {}
    for kind, chosen in by_kind.items():
        answers = tuple(_answer(kind, chosen, target, placer) for target in placer.targets)
        alike.setdefault(answers, []).append(kind)
    return [(kinds, answers) for answers, kinds in alike.items()]


def _named(kinds: Sequence[Kind], among: Iterable[Kind]) -> str:
    """The kinds as a reader knows them: `weights f16, q8_0; activations`."""
    every, parts = list(among), []
    for memory in dict.fromkeys(memory for memory, _ in kinds):
        own = [dtype for m, dtype in kinds if m == memory]
        others = [dtype for m, dtype in every if m == memory and dtype not in own]
        if len(own) > MANY and len(others) < MANY:
            but = f" but {', '.join(others)}" if others else ""
            parts.append(f"{memory}, all types{but}")
        elif memory:
            parts.append(f"{memory} {', '.join(own)}")
        elif len(every) > 1:
            parts.append("activations")
    return "; ".join(parts)


def _answer(kind: Kind, chosen: Sequence[Case], target: Target, placer: Placer) -> str:
    answer, colon, why = _cell(chosen, target, placer).partition(":")
    memory, dtype = kind
    if memory == WEIGHTS and answer != "no":
        of = Tensor((256, 256), BY_NAME[dtype], Role.WEIGHT, "a weight")
        kept = target.buffer_type.accepts(of).name
        answer += f", as {kept}" if kept != dtype else ""
    return f"{answer}{colon}{why}"


def _cell(chosen: Sequence[Case], target: Target, placer: Placer) -> str:
    """One answer to all these cases."""
    graphs = [cases.graph(c, placer.ops, lambda arg: arg.stored_in(F32)) for c in chosen]
    nodes = [graph.outputs[0] for graph in graphs]
    forms = {node: placer.judge(node, target).form for node in nodes}
    words = list(dict.fromkeys(FORMS[form] for form in forms.values()))
    if len(words) == 1 and words != ["no"]:
        return words[0]
    refused = next((node for node, form in forms.items() if form is None), None)
    if refused is not None:
        why = reason(refused, target, placer)
        return f"no: {why}" if words == ["no"] else f"in part: {why}"
    other = next(node for node, form in forms.items() if form)
    return f"{' or '.join(sorted(words, reverse=True))}: {_refusal(other, target)}"


def instead(case: Case, target: Target, placer: Placer) -> tuple[str, str]:
    """How a device takes a case that it refuses as it is, "" for not at all; and what keeps it
    from that, where there is another form."""
    (node,) = cases.graph(case, placer.ops, lambda arg: arg.stored_in(F32)).outputs
    form = placer.judge(node, target).form
    if form:
        return FORMS[form], ""
    others = node.op is not None and (node.op.decompose or node.op.rows_form)
    return "", reason(node, target, placer) if form is None and others else ""


def _refusal(node: Tensor, target: Target) -> str:
    return str(target.hooks.op_supported(target.device, retyped(node, target)))


def reason(node: Tensor, target: Target, placer: Placer) -> str:
    """What keeps `node` from this device: the refusal at the end of the last form that it has.

    That is its own where there is no other form, else that of a piece.
    """
    assert node.op is not None
    forms = [form for form in ("rows_form", "decompose") if getattr(node.op, form) is not None]
    for form in forms:
        try:
            pieces, _ = placer.expand(node, target, form)
        except GraphError as error:
            return f"it cannot be decomposed: {error.what}"
        for piece in pieces:
            if placer.place_of(piece, target) is None:
                assert piece.op is not None
                return f"it needs {piece.op.name}: {reason(piece, target, placer)}"
    if forms:  # all pieces would do, so it is the writing
        return placer.judge(node, target).reason.rpartition("; ")[2]
    return _refusal(node, target)

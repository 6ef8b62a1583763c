"""What runs where: operations and weight dtypes against devices, as a table for documentation.

Each cell is the answer to all cases of the conformance suite: "yes", "decomposed" (from simpler
operations that the device has), "rows later" (the plan writes its rows of state), "in part" or
"no", each with the first reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from umbel.gguf.types import BY_NAME, F32
from umbel.graph import Operation, Role
from umbel.plan import Placer, Target

from umbel_kit import cases
from umbel_kit.cases import CASES, Case

FORMS = {"": "yes", "decompose": "decomposed", "rows_form": "rows later", None: "no"}
BEGIN = "<!-- umbel-kit coverage: what follows is generated -->"


def table(targets: Sequence[Target], ops: Mapping[str, Operation]) -> str:
    """The page's generated part, in Markdown; the host, which takes what is left, is last."""
    placer = Placer(targets, ops)
    used = list(dict.fromkeys(case.op for case in CASES))
    weights = [c for c in CASES if c.op == "mul_mat" and c.args[0].role is Role.WEIGHT]
    dtypes = list(dict.fromkeys(c.args[0].dtype for c in weights))
    return "\n".join(
        [
            BEGIN,
            "",
            *_grid("operation", used, targets, lambda name, t: _cell(_named(name), t, placer)),
            "",
            "Weights of matrix products:",
            "",
            *_grid("dtype", dtypes, targets, lambda name, t: _weight(name, weights, t, placer)),
            "",
        ]
    )


def _grid(
    title: str,
    names: Sequence[str],
    targets: Sequence[Target],
    cell: Callable[[str, Target], str],
) -> list[str]:
    heads = [f"`{t.name}` ({t.info.compute_dtype})" for t in targets]
    lines = [f"| {title} | {' | '.join(heads)} |", f"|---{'|---' * len(targets)}|"]
    for name in names:
        lines.append(f"| `{name}` | {' | '.join(cell(name, t) for t in targets)} |")
    return lines


def _named(op: str) -> list[Case]:
    return [case for case in CASES if case.op == op]


def _weight(dtype: str, of: Sequence[Case], target: Target, placer: Placer) -> str:
    chosen = [case for case in of if case.args[0].dtype == dtype]
    answer = _cell(chosen, target, placer)
    kept = target.buffer_type.accepts(BY_NAME[dtype]).name
    return answer if kept == dtype else f"{answer}, as {kept}"


def _cell(chosen: Sequence[Case], target: Target, placer: Placer) -> str:
    graphs = [cases.graph(c, placer.ops, lambda arg: arg.stored_in(F32)) for c in chosen]
    verdicts = [placer.judge(graph.outputs[0], target) for graph in graphs]
    forms = list(dict.fromkeys(FORMS[v.form] for v in verdicts))
    if len(forms) == 1 and forms != ["no"]:
        return forms[0]
    reason = next(v.reason for v in verdicts if v.form is None or FORMS[v.form] != "yes")
    text = reason.removeprefix(f"{target.name}: ").partition(";")[0]
    return f"{'no' if forms == ['no'] else 'in part'}: {text}"

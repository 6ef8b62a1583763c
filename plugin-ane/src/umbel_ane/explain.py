"""`umbel ane explain`: what programs a model will have, without compiling one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from umbel_ane.compiler.budget import SHARE
from umbel_ane.compiler.programs import Compiled
from umbel_ane.opened import Opened

if TYPE_CHECKING:
    from umbel import Model
    from umbel.models import StepShape
    from umbel.plan import Plan

MIB = 1 << 20


@attrs.frozen
class Step:
    """One shape of step: its programs, and what of it runs elsewhere and why."""

    shape: StepShape
    programs: tuple[Compiled, ...]
    elsewhere: Mapping[tuple[str, str, str], int]  # (node, device, reason) -> how often

    @property
    def title(self) -> str:
        tokens = self.shape.tokens if self.shape.tokens > 1 else self.shape.sequences
        kind = "prefill" if self.shape.tokens > 1 or self.shape.whole else "decode"
        return f"{kind} of {tokens} in {self.shape.kv_length}"

    @property
    def ms(self) -> float:
        return sum(p.counts.ms for p in self.programs)


def shapes(model: Model) -> list[StepShape]:
    """The steps that a model can have: one token at each length of context, and prompts of
    each bucket at the longest."""
    runner = model.runner
    first, *others = runner.usual
    if runner.encodes:
        sizes = [n for n in runner.buckets if 1 < n <= model.ctx]
        return [first._replace(tokens=n, kv_length=n, rows=n, whole=True) for n in sizes]
    lengths = [n for n in runner.lengths if n <= first.kv_length or n <= model.ctx]
    decodes = [first._replace(kv_length=n) for n in lengths] or [first]
    worst = others[0] if others else first
    prefills = [worst._replace(tokens=n) for n in runner.buckets if 1 < n <= worst.tokens]
    return [*decodes, *prefills]


def steps(model: Model, opened: Opened, backend: str) -> Iterator[Step]:
    """Each of them planned, lowered and cut as at a run."""
    for shape in shapes(model):
        plan = model.runner.plan(shape)
        programs: list[Compiled] = []
        for step in plan.steps:
            if step.target.device.backend == backend:
                programs += opened.splits.compile(step.graph, False)
        yield Step(shape, tuple(programs), _elsewhere(plan, backend))


def _elsewhere(plan: Plan, backend: str) -> dict[tuple[str, str, str], int]:
    found: Counter[tuple[str, str, str]] = Counter()
    for placed in plan.placement.nodes:
        if placed.target.device.backend != backend:
            found[placed.origin.partition(".")[0], placed.target.name, placed.reason] += 1
    return dict(found)


def rows(step: Step) -> Iterator[tuple[object, ...]]:
    """A line for each program."""
    head = ("program", "of", "operations", "weights", "inputs", "outputs", "SRAM", "ms")
    yield head
    for p in step.programs:
        c = p.counts
        ports = (
            f"{len(p.inputs)} of {p.input_bytes >> 10} KiB",
            f"{len(p.outputs)} of {p.output_bytes >> 10} KiB",
        )
        memory = f"{c.weight_bytes / MIB:.1f} MiB", *ports, f"{c.sram_bytes / MIB:.1f} MiB"
        yield (p.name.removeprefix("program "), p.where, c.ops, *memory, c.ms)


def told(step: Step) -> dict[str, Any]:
    """The same for JSON."""
    programs = [
        {
            "name": p.name,
            "of": p.where,
            "operations": dict(p.counts.operations),
            "weight_bytes": p.counts.weight_bytes,
            "fp16_bytes": p.counts.fp16_bytes,
            "inputs": len(p.inputs),
            "outputs": len(p.outputs),
            "input_bytes": p.input_bytes,
            "output_bytes": p.output_bytes,
            "sram_bytes": p.counts.sram_bytes,
            "ms": p.counts.ms,
        }
        for p in step.programs
    ]
    elsewhere = [
        {"node": node, "device": device, "reason": reason, "count": n}
        for (node, device, reason), n in step.elsewhere.items()
    ]
    return {"step": step.title, "programs": programs, "elsewhere": elsewhere}


def budget(found: list[Step], lengths: Sequence[int], limit: int) -> str:
    """How many compiles it is, and whether all that there can be are many."""
    different, most = len({p.key for step in found for p in step.programs}), 0
    for step in found:
        room = [n for n in lengths if step.shape.tokens <= n <= step.shape.kv_length]
        alone = step.shape.tokens == 1 or step.shape.whole
        most += len(step.programs) * (1 if alone else len(room))
    text = f"{different} compiles, once for this user, and {most} at most with prompts at each"
    text += f" length of context; a process may compile {limit or 'any number'}"
    if limit and most * SHARE > limit:
        text += ": more than a third of that; a shorter --ctx or a smaller --ubatch needs fewer"
    return text

"""`umbel ane explain`: what programs a model will have, without compiling one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from umbel.graph import Role, Tensor

from umbel_ane import costs
from umbel_ane.compiler.ports import Between, Held, OneHot, Port, Rows, Watched
from umbel_ane.compiler.programs import Compiled
from umbel_ane.opened import Opened

if TYPE_CHECKING:
    from umbel import Model
    from umbel.models import StepShape
    from umbel.plan import Plan

MIB = 1 << 20
ATTENDS = ("flash_attn_ext", "kv_attention", "soft_max")
HEADS = ("output", "token_embd")  # the weight of the logits, or the one it is tied to
SHARE = 3  # a model should need no more than a third of what a process may compile
LAYER = re.compile(r"^blk\.\d+\.")


@attrs.frozen
class Choice:
    """Where a part of a decode step runs that both sides can do, and what it costs there."""

    part: str  # attention, head
    device: str
    option: str  # what the user has asked for
    here_ms: float
    host_ms: float

    def __str__(self) -> str:
        each = " a layer" if self.part == "attention" else ""
        figures = (
            f"about {self.here_ms:.3f} ms{each} on the ANE, {self.host_ms:.3f} on the host"
        )
        return f"{self.part} on {self.device}: {figures} (-O ane.{self.part}={self.option})"


@attrs.frozen
class Step:
    """One shape of step: its programs, and what of it runs elsewhere and why."""

    shape: StepShape
    programs: tuple[Compiled, ...]
    elsewhere: Mapping[tuple[str, str, str], int]  # (node, device, reason) -> how often
    choices: tuple[Choice, ...] = ()
    written: Mapping[Tensor, str] = attrs.field(
        factory=dict
    )  # an output -> the state it is for

    @property
    def title(self) -> str:
        tokens = self.shape.tokens if self.shape.tokens > 1 else self.shape.sequences
        kind = "prefill" if self.shape.tokens > 1 or self.shape.whole else "decode"
        return f"{kind} of {tokens} in {self.shape.kv_length}"

    @property
    def ms(self) -> float:
        return sum(p.counts.ms for p in self.programs)


def shapes(model: Model, prompts: Collection[int] = ()) -> list[StepShape]:
    """The steps that a model can have: one token at each length of context, and prompts of
    each bucket at the longest. With `prompts`, those alone that prompts of so many tokens
    take; 1 is a decode."""
    runner = model.runner
    first, *others = runner.usual
    if runner.encodes:
        sizes = [n for n in runner.buckets if 1 < n <= model.ctx]
        wanted = _taken(sizes, prompts)
        return [first._replace(tokens=n, kv_length=n, rows=n, whole=True) for n in wanted]
    lengths = [n for n in runner.lengths if n <= first.kv_length or n <= model.ctx]
    decodes = [first._replace(kv_length=n) for n in lengths] or [first]
    worst = others[0] if others else first
    sizes = [n for n in runner.buckets if 1 < n <= worst.tokens]
    prefills = [worst._replace(tokens=n) for n in _taken(sizes, prompts)]
    return [*(decodes if not prompts or 1 in prompts else ()), *prefills]


def _taken(sizes: Sequence[int], prompts: Collection[int]) -> list[int]:
    """The sizes to which prompts are padded; one beyond the largest is read in pieces of it."""
    if not prompts:
        return list(sizes)
    largest = sizes[-1:]
    padded = {next((size for size in sizes if size >= n), *largest) for n in prompts if n > 1}
    return sorted(padded) if sizes else []


def steps(
    model: Model, opened: Opened, backend: str, prompts: Collection[int] = ()
) -> Iterator[Step]:
    """Each of them planned, lowered and cut as at a run."""
    for shape in shapes(model, prompts):
        plan = model.runner.plan(shape)
        programs: list[Compiled] = []
        for step in plan.steps:
            if step.target.device.backend == backend:
                programs += opened.splits.compile(step.graph, False)
        decodes = shape.tokens == 1 and not shape.whole
        choices = tuple(_choices(model, opened, plan, shape)) if decodes else ()
        written = {new.storage: state.label for (state, _), (new, _), _ in plan.row_writes}
        yield Step(shape, tuple(programs), _elsewhere(plan, backend), choices, written)


def _elsewhere(plan: Plan, backend: str) -> dict[tuple[str, str, str], int]:
    found: Counter[tuple[str, str, str]] = Counter()
    for placed in plan.placement.nodes:
        if placed.target.device.backend != backend:
            node, reason = LAYER.sub("", placed.origin).partition(".")[0], placed.reason
            if placed.node.op is not None and placed.node.op.name == "cast":
                reason = f"values are turned from {reason} on the way"
            found[node, placed.target.name, reason] += 1
    return dict(found)


def _choices(model: Model, opened: Opened, plan: Plan, shape: StepShape) -> Iterator[Choice]:
    """By the figures that the compiler chooses by."""
    hparams, rates = model.runner.definition.hparams, opened.driver.profile.costs
    attends = _device(plan, ATTENDS, ("attention",))
    if attends:
        # keys in float16, read twice there; a stay on the host is one dispatch more
        keys = 2 * shape.kv_length * max(hparams.n_head_kv) * hparams.head_dim_k
        here = costs.seconds_to_ms(2 * keys, rates.weight_gbps * 1e9)
        option = opened.options.attention
        yield Choice("attention", attends, option, here, rates.dispatch_ms)
    head = _device(plan, ("mul_mat",), HEADS)
    if head and hparams.n_vocab > opened.driver.profile.max_channels:
        figures = costs.head(rates, hparams.n_vocab * hparams.n_embd)
        yield Choice("head", head, opened.options.head, *figures)


def _device(plan: Plan, operations: Collection[str], origins: Collection[str]) -> str:
    """Where what does one of these operations runs; nothing where there is none."""
    for placed in plan.placement.nodes:
        named = placed.origin.partition(".")[0] in origins
        if named and placed.node.op is not None and placed.node.op.name in operations:
            return placed.target.name
    return ""


def carries(port: Port, written: Mapping[Tensor, str]) -> str:
    """What the values of a port are, for who fills and reads it without this runtime."""
    source = port.source
    if isinstance(source, Between):
        return f"value {source.number} that an earlier program of the step leaves"
    if isinstance(source, Held):
        return "a constant"
    if isinstance(source, Watched):
        return "a number that is finite where all values were"
    if isinstance(source, OneHot):
        return f"row i has its one at {source.ids.label}[i] of {source.n}, else zeros"
    what = f"{source.tensor.label} {list(source.tensor.shape)}"
    if isinstance(source, Rows):
        kind = "state" if source.tensor.role is Role.STATE else "table"
        what = f"rows {source.ids.label} {list(source.ids.shape)} of the {kind} {what}"
    if source.tensor.storage in written:
        what += f", new rows of the state {written[source.tensor.storage]}"
    order = f", axes in the order {list(source.axes)}"
    return f"{what}{order if source.axes != tuple(sorted(source.axes)) else ''}"


def rows(step: Step) -> Iterator[tuple[object, ...]]:
    """A line for each program."""
    head = ("program", "of", "operations", "weights", "inputs", "outputs", "SRAM", "ms")
    yield head
    for i, p in enumerate(step.programs):
        c = p.counts
        ports = (
            f"{len(p.inputs)} of {p.input_bytes >> 10} KiB",
            f"{len(p.outputs)} of {p.output_bytes >> 10} KiB",
        )
        memory = f"{c.weight_bytes / MIB:.1f} MiB", *ports, f"{c.sram_bytes / MIB:.1f} MiB"
        yield (f"{i + 1} of {len(step.programs)}", p.where, c.ops, *memory, c.ms)


def told(step: Step) -> dict[str, Any]:
    """The same for JSON, with what each surface carries."""
    programs = [
        {
            "name": f"program {i + 1} of {len(step.programs)}",
            "of": p.where,
            "key": p.key,
            "operations": dict(p.counts.operations),
            "weight_bytes": p.counts.weight_bytes,
            "fp16_bytes": p.counts.fp16_bytes,
            "inputs": [_port(port, step) for port in p.inputs],
            "outputs": [_port(port, step) for port in p.outputs],
            "input_bytes": p.input_bytes,
            "output_bytes": p.output_bytes,
            "sram_bytes": p.counts.sram_bytes,
            "ms": p.counts.ms,
        }
        for i, p in enumerate(step.programs)
    ]
    elsewhere = [
        {"node": node, "device": device, "reason": reason, "count": n}
        for (node, device, reason), n in step.elsewhere.items()
    ]
    choices = [attrs.asdict(choice) for choice in step.choices]
    shown = {"step": step.title, "ms": step.ms, "dispatches": len(step.programs)}
    return {**shown, "programs": programs, "choices": choices, "elsewhere": elsewhere}


def _port(port: Port, step: Step) -> dict[str, Any]:
    carried = carries(port, step.written)
    return {"name": port.name, "shape": list(port.shape), "carries": carried}


@attrs.frozen
class Total:
    """What all steps cost together."""

    compiles: int  # different programs
    compiles_at_most: int  # with prompts at each length of context
    compile_limit: int  # of a process; 0: none
    dispatches: tuple[int, int]  # a token of decode, at least and at most; 0, 0: none decodes
    file_bytes: int  # of the model's weights
    program_bytes: int  # of the largest step's weights, as programs hold them
    fp16_bytes: int  # the same as float16
    all_bytes: int  # of all programs: each holds its own

    def lines(self) -> Iterator[str]:
        least, most = self.dispatches
        if most:
            span = str(most) if least == most else f"{least} to {most}"
            yield f"{span} dispatch{'es' * (most > 1)} for each token"
        held, whole = self.program_bytes / MIB, self.fp16_bytes / MIB
        as_fp16 = "" if held == whole else f" ({whole:.1f} as float16)"
        file, every = self.file_bytes / MIB, self.all_bytes / MIB
        yield (
            f"weights: {file:.1f} MiB in the file; {held:.1f} MiB{as_fp16} in the programs of "
            f"a step, {every:.1f} MiB in all, since each program holds its own"
        )
        text = f"{self.compiles} compiles, once for this user, and {self.compiles_at_most} at "
        text += "most with prompts at each length of context; a process may compile "
        text += f"{self.compile_limit or 'any number'}"
        if self.compile_limit and self.compiles_at_most * SHARE > self.compile_limit:
            text += ": more than a third of that; a shorter --ctx or a smaller --ubatch "
            text += "needs fewer"
        yield text


def total(model: Model, found: Sequence[Step], limit: int) -> Total:
    """How many compiles it is, whether all that there can be are many, and the memory."""
    different = {p.key: p.counts for step in found for p in step.programs}
    most = 0
    for step in found:
        lengths = model.runner.lengths
        room = [n for n in lengths if step.shape.tokens <= n <= step.shape.kv_length]
        alone = step.shape.tokens == 1 or step.shape.whole
        most += len(step.programs) * (1 if alone else len(room))
    decodes = [len(s.programs) for s in found if s.title.startswith("decode")] or [0]
    held = [[p.counts for p in step.programs] for step in found]
    sums = [(sum(c.weight_bytes for c in h), sum(c.fp16_bytes for c in h)) for h in held]
    return Total(
        len(different),
        most,
        limit,
        (min(decodes), max(decodes)),
        model.runner.weights.total,
        *max(sums, default=(0, 0)),
        sum(c.weight_bytes for c in different.values()),
    )

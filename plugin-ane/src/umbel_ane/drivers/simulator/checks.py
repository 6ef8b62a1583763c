"""What a profile forbids, as data: the 20 constraints that Orion numbers, and the limits that
others report. (arXiv 2603.06728, table 3; the sources of limits stand in profiles/*.toml.)

The simulator refuses by these rules; a test that guards the compiler asks them of everything
that it makes: `CONSTRAINTS[1].check(made)` is a list of sentences, empty where all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from umbel_ane import costs
from umbel_ane.drivers.simulator.constants import MISSING, blobs, problem
from umbel_ane.drivers.simulator.errors import INVALID, LOAD
from umbel_ane.drivers.simulator.operations import KNOWN
from umbel_ane.mil.program import Function, Literal, Program, Ref, Statement, Type
from umbel_ane.profile import Profile

COMPILE = "ANECCompile() FAILED"  # of compile; INVALID too, LOAD of load
INFERENCE = "Program Inference error"  # of evaluate, 0x1d
SILENT = "wrong values, silently"
CRASH = "the process is gone"
LATER = "Program Inference error of what comes later"
COST = "slower"


@attrs.frozen(eq=False)
class Made:
    """A program as it is handed over: what is checked."""

    profile: Profile
    program: Program
    weights: Mapping[str, bytes | memoryview] | None = attrs.field(factory=dict)
    inputs: Sequence[int] = ()  # bytes of the surfaces, in the order of binding
    outputs: Sequence[int] = ()
    text: object = b""
    compiles: int = 0  # of the process before it

    @property
    def main(self) -> Function:
        return self.program.main

    def constant(self, argument: object) -> bool:
        """Whether an argument is known when the program is compiled."""
        made = {r.name for s in self.main.statements if folded(s) for r in s.results}
        return isinstance(argument, Literal) or (
            isinstance(argument, Ref) and argument.name in made
        )


Find = Callable[[Made], Iterator[str]]


@attrs.frozen(eq=False)
class Rule:
    number: int  # in Orion's table; 0: not there
    fact: str
    symptom: str
    find: Find

    def __str__(self) -> str:
        return f"constraint {self.number}: {self.fact}" if self.number else self.fact

    def check(self, made: Made) -> list[str]:
        """What breaks it, under the profile of `made`."""
        return list(self.find(made))


def folded(statement: Statement) -> bool:
    return statement.op == "const" or statement.op.startswith("constexpr")


def _dims(kind: Type) -> tuple[int, ...]:
    return tuple(d or 1 for d in kind.dims or ())


def _refused(*ops: str) -> Find:
    def find(made: Made) -> Iterator[str]:
        for s in made.main.statements:
            if s.op in made.profile.refused and (s.op in ops if ops else s.op not in OWN):
                yield f"{s.name} = {s.op}(...)"

    return find


OWN = ("concat", "gelu")  # operations that have a constraint of their own


def _uniform(sizes: Sequence[int], what: str) -> Iterator[str]:
    if len(set(sizes)) > 1:
        yield f"{what} surfaces of {', '.join(map(str, sizes))} bytes"


def _uniform_outputs(made: Made) -> Iterator[str]:
    if made.profile.uniform_outputs:
        yield from _uniform(made.outputs, "output")


def _uniform_inputs(made: Made) -> Iterator[str]:
    if made.profile.uniform_inputs:
        yield from _uniform(made.inputs, "input")


def _order(made: Made, names: Sequence[str]) -> Iterator[str]:
    if made.profile.binding == "sorted" and list(names) != sorted(names):
        yield f"declared {', '.join(names)}; bound {', '.join(sorted(names))}"


def _small(made: Made) -> Iterator[str]:
    for size in (*made.inputs, *made.outputs):
        if size < made.profile.min_surface:
            yield f"a surface of {size} bytes; the least is {made.profile.min_surface}"


def _many_compiles(made: Made) -> Iterator[str]:
    limit = made.profile.compile_limit
    if limit and made.compiles >= limit:
        yield f"compile {made.compiles + 1} of a process that may do {limit}"


def _masks(made: Made) -> Iterator[str]:
    for s in made.main.statements:
        masked = s.op == "scaled_dot_product_attention" and "attn_mask" in s.args
        if masked and not made.profile.masked_sdpa:
            yield f"{s.name} has an attn_mask that is ignored"


def _blob_offsets(made: Made) -> Iterator[str]:
    for s, kind, blob in blobs(made.main):
        why = problem(made.weights or {}, blob, kind)
        if why and why != MISSING:
            yield f"{s.name}: {blob.path} at {blob.offset}: {why}"


def _text(made: Made) -> Iterator[str]:
    if not isinstance(made.text, bytes):
        yield f"the text is a {type(made.text).__name__}, not bytes"


def _weights(made: Made) -> Iterator[str]:
    if made.weights is None:
        yield "the weights are None, not an empty mapping"


def _flags(made: Made) -> Iterator[str]:
    if made.profile.named_flags:
        for s in made.main.statements:
            for flag in ("transpose_x", "transpose_y"):
                if s.op == "matmul" and isinstance(s.args.get(flag), Literal):
                    yield f"{s.name}: {flag} is written in place"


def _bias(made: Made) -> Iterator[str]:
    for s in made.main.statements:
        if s.op == "conv" and "bias" in s.args and not made.profile.conv_bias:
            yield f"{s.name} has a bias"


def _live(made: Made) -> Iterator[str]:
    if made.profile.live_outputs:
        results = {r.name for s in made.main.statements if not folded(s) for r in s.results}
        for name in made.main.outputs:
            if name not in results:
                yield f"the output {name} is the result of no operation"


def _channels(made: Made) -> Iterator[str]:
    kinds, most = made.main.types(), made.profile.max_channels
    for s in made.main.statements:
        if s.op == "conv":
            arguments = (s.args.get("x"), s.args.get("weight"))
            given = [kinds.get(a.name) for a in arguments if isinstance(a, Ref)]
            sizes = [
                _dims(k)[1] for k in (*given, s.results[0].type) if k and len(_dims(k)) > 1
            ]
            if max(sizes, default=0) > most:
                yield f"{s.name} is over {max(sizes)} channels; at most {most}"


def _slow_matmul(made: Made) -> Iterator[str]:
    for s in made.main.statements:
        if s.op == "matmul" and (
            made.constant(s.args.get("y")) or made.constant(s.args.get("x"))
        ):
            yield f"{s.name} is a product with a constant: a 1x1 convolution takes a third"


def _packing(made: Made) -> Iterator[str]:
    for values, sizes in (
        (bound(made.main, made.profile, "inputs"), made.inputs),
        (bound(made.main, made.profile, "outputs"), made.outputs),
    ):
        for (name, kind), size in zip(values, sizes, strict=bool(sizes)):
            if size < costs.nbytes(kind):
                yield f"{name}: {kind} does not fit into {size} bytes, packed from byte 0"


def bound(main: Function, profile: Profile, side: str) -> list[tuple[str, Type]]:
    """Names and types of inputs or outputs, in the order in which surfaces are bound."""
    kinds = main.types()
    names = [v.name for v in main.inputs] if side == "inputs" else list(main.outputs)
    names = sorted(names) if profile.binding == "sorted" else names
    return [(name, kinds[name]) for name in names]


def _nothing(made: Made) -> Iterator[str]:
    yield from ()  # told by what a process does, not by a program


CONSTRAINTS: Mapping[int, Rule] = {
    rule.number: rule
    for rule in (
        Rule(1, "concat is refused", COMPILE, _refused("concat")),
        Rule(2, "surfaces of outputs are of one size", INFERENCE, _uniform_outputs),
        Rule(
            3, "outputs are bound sorted by name", SILENT, lambda m: _order(m, m.main.outputs)
        ),
        Rule(4, "a surface has a least size", INFERENCE, _small),
        Rule(5, "a process may compile so often", SILENT, _many_compiles),
        Rule(6, "attention ignores its mask", SILENT, _masks),
        Rule(7, "weights are those of the compile", SILENT, _nothing),
        Rule(8, "a blob's offset is that of its metadata", SILENT, _blob_offsets),
        Rule(9, "MIL text is bytes", CRASH, _text),
        Rule(10, "gelu is no activation", COMPILE, _refused("gelu")),
        Rule(11, "no weights are an empty mapping", CRASH, _weights),
        Rule(12, "transpose flags are named constants", INVALID, _flags),
        Rule(13, "conv has no bias", INVALID, _bias),
        Rule(14, "outputs are results of operations", INVALID, _live),
        Rule(15, "a restart takes 50 ms", COST, _nothing),
        Rule(16, "wide convolutions are refused", COMPILE, _channels),
        Rule(17, "a matmul takes three times a convolution", COST, _slow_matmul),
        Rule(18, "surfaces of inputs are of one size", INFERENCE, _uniform_inputs),
        Rule(
            19,
            "inputs are bound sorted by name",
            SILENT,
            lambda m: _order(m, [v.name for v in m.main.inputs]),
        ),
        Rule(20, "surfaces are read packed from byte 0", SILENT, _packing),
    )
}


def _unknown(made: Made) -> Iterator[str]:
    for s in made.main.statements:
        if s.op not in KNOWN and not folded(s):
            yield f"{s.name} = {s.op}(...)"


def _palettes(made: Made) -> Iterator[str]:
    for s in made.main.statements:
        if s.op.startswith("constexpr"):
            if s.op != "constexpr_lut_to_dense":
                yield f"{s.name} = {s.op}(...)"
            elif not made.profile.palettes:
                yield f"{s.name} is a palette"


def _wide(made: Made) -> Iterator[str]:
    for name, kind in made.main.types().items():
        if max(_dims(kind), default=0) > made.profile.max_dim:
            yield f"{name} is {kind}; an axis is at most {made.profile.max_dim}"


def _io(made: Made) -> list[tuple[str, Type]]:
    kinds = made.main.types()
    names = (*(v.name for v in made.main.inputs), *made.main.outputs)
    return [(name, kinds[name]) for name in names if name in kinds]


def _spatial(made: Made) -> Iterator[str]:
    for name, kind in _io(made):
        if (_dims(kind) or (0,))[-1] % made.profile.spatial_multiple:
            multiple = made.profile.spatial_multiple
            yield f"{name} is {kind}; its last axis is no multiple of {multiple}"


def _fp32_io(made: Made) -> Iterator[str]:
    for name, kind in _io(made):
        if kind.dtype == "fp32" and not made.profile.fp32_io:
            yield f"{name} is {kind}"


def _epsilon(made: Made) -> Iterator[str]:
    for s in made.main.statements:
        if s.op in made.profile.needs_epsilon and "epsilon" not in s.args:
            yield f"{s.name} = {s.op}(...) has no epsilon"


def _long(made: Made) -> Iterator[str]:
    count = sum(not folded(s) for s in made.main.statements)
    if made.profile.max_program_ops and count > made.profile.max_program_ops:
        yield f"{count} operations; at most {made.profile.max_program_ops}"


def _files(made: Made) -> Iterator[str]:
    profile, used = made.profile, {blob.path for _, _, blob in blobs(made.main)}
    most = profile.max_files - (profile.scalar_takes_file and _has_scalar(made.main))
    if profile.max_files and len(used) > most:
        yield f"{len(used)} weight files; at most {most}"


def _has_scalar(main: Function) -> bool:
    kinds = main.types()
    for s in main.statements:
        for a in s.args.values() if s.op in ("add", "mul", "pow") else ():
            kind = kinds.get(a.name) if isinstance(a, Ref) else getattr(a, "type", None)
            if kind is not None and kind.dims is None:
                return True
    return False


def _shared_file(made: Made) -> Iterator[str]:
    seen: dict[str, int] = {}
    for s, _, blob in blobs(made.main):
        if seen.setdefault(blob.path, blob.offset) != blob.offset and not made.profile.one_file:
            yield f"{s.name}: {blob.path} holds several weights"


def _missing_files(made: Made) -> Iterator[str]:
    for s, kind, blob in blobs(made.main):
        if problem(made.weights or {}, blob, kind) == MISSING:
            yield f"{s.name}: there is no file {blob.path}"


def _heavy(made: Made) -> Iterator[str]:
    held = sum(costs.nbytes(kind) for _, kind, _ in blobs(made.main))
    if held > made.profile.max_weight_bytes:
        yield f"{held} bytes of weights; at most {made.profile.max_weight_bytes}"


def _many_inputs(made: Made) -> Iterator[str]:
    count = len(made.main.inputs)
    if made.profile.max_inputs and count > made.profile.max_inputs:
        yield f"{count} inputs; at most {made.profile.max_inputs}"


def _inner(made: Made) -> Iterator[str]:
    multiple, kinds = made.profile.inner_multiple, made.main.types()
    for s in made.main.statements:
        x, flag = s.args.get("x"), s.args.get("transpose_x")
        if s.op == "matmul" and isinstance(x, Ref) and len(_dims(kinds[x.name])) > 1:
            n = _dims(kinds[x.name])[-2 if truth(made.main, flag) else -1]
            if n % multiple:
                yield f"{s.name} sums over {n}; not a multiple of {multiple}: zeros"


def truth(main: Function, argument: object) -> bool:
    """A flag: written in place, or a named constant; not given is false."""
    if isinstance(argument, Ref):
        made = {s.name: s for s in main.statements if s.op == "const"}
        argument = made[argument.name].attributes.get("val") if argument.name in made else None
    return isinstance(argument, Literal) and bool(argument.data)


def _poison(made: Made) -> Iterator[str]:
    for s in made.main.statements:
        if s.op in made.profile.poisoned_by:
            yield f"{s.name} = {s.op}(...): each later evaluation of the process fails"


def _runtime_conv(made: Made) -> Iterator[str]:
    for s in made.main.statements:
        computed = s.op == "conv" and not made.constant(s.args.get("weight"))
        if computed and not made.profile.runtime_conv:
            yield f"{s.name} has a weight that is no constant: it is ignored"


LIMITS: tuple[Rule, ...] = (
    Rule(0, "operations are those of the Neural Engine", INVALID, _unknown),
    Rule(0, "operations are not refused", COMPILE, _refused()),
    Rule(0, "weights are no palettes", COMPILE, _palettes),
    Rule(0, "an axis is not too long", COMPILE, _wide),
    Rule(0, "the last axis of inputs and outputs is a multiple", COMPILE, _spatial),
    Rule(0, "inputs and outputs are fp16", COMPILE, _fp32_io),
    Rule(0, "some operations need their epsilon", COMPILE, _epsilon),
    Rule(0, "a program has so many operations", COMPILE, _long),
    Rule(0, "weight files are there", INVALID, _missing_files),
    Rule(0, "a program has so many weight files", INVALID, _files),
    Rule(0, "a weight file has one weight", COMPILE, _shared_file),
    Rule(0, "a program has so many bytes of weights", LOAD, _heavy),
    Rule(0, "a program has so many inputs", INFERENCE, _many_inputs),
    Rule(0, "the summed axis of a matmul is a multiple", SILENT, _inner),
    Rule(0, "the weight of a convolution is constant", SILENT, _runtime_conv),
    Rule(0, "some operations poison the process", LATER, _poison),
)


def violations(made: Made, *symptoms: str) -> list[tuple[Rule, str]]:
    """What breaks a rule with one of these symptoms, the first of the table first."""
    rules = [r for r in (*CONSTRAINTS.values(), *LIMITS) if r.symptom in symptoms]
    return [(rule, found) for rule in rules for found in rule.check(made)]

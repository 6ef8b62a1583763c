"""What programs cost: the virtual clock of the simulator, and what a planner chooses by.

An evaluation takes one dispatch and, for each operation, the longer of its arithmetic and of
reading its weights; activations beyond the on-chip memory slow an operation down. The rates are
a profile's; those of the default are calibrated so that GPT-2 124M, cut as Orion cuts it (two
programs a layer, attention over the cache, output projection and head on the CPU), takes what
Orion measured on an M4 Max (arXiv 2603.06728): 3.48 ms a token on the CPU alone, 5.76 ms with
the Neural Engine, 95 ms for a prefill whose programs are compiled. Orion does not say how long
that prompt was; 256 is assumed. All that is left of it, when arithmetic, weights and dispatches
are counted, is laid to the turning of values to the surfaces' layout (surface_gbps): a decode
step turns one column of 16 and hardly feels it. tests/simulator/test_costs.py replays this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from umbel_ane.mil.literals import KINDS
from umbel_ane.mil.program import Blob, Function, Literal, Program, Ref, Statement, Type
from umbel_ane.profile import Costs, Profile

FREE = frozenset({"const", "reshape", "identity", "squeeze", "expand_dims"})
FREE |= frozenset({"constexpr_lut_to_dense"})  # its stored bytes are counted where it is used
PRODUCTS = frozenset({"conv", "matmul", "linear", "scaled_dot_product_attention"})


def nbytes(kind: Type) -> int:
    """Of a value of that type, packed."""
    return -(-kind.size * KINDS[kind.dtype].bits // 8) if kind.dtype in KINDS else 0


def seconds_to_ms(amount: float, rate: float) -> float:
    """Milliseconds for an amount at a rate a second; a rate of 0 is not known, and free."""
    return amount / rate * 1e3 if rate else 0.0


def product(costs: Costs, flops: float, weight_bytes: float, *, conv: bool) -> float:
    """Milliseconds of a convolution or matmul: arithmetic, or reading its weights."""
    rate = costs.conv_tflops if conv else costs.matmul_tflops
    reading = seconds_to_ms(weight_bytes, costs.weight_gbps * 1e9)
    return max(seconds_to_ms(flops, rate * 1e12), reading)


def elementwise(costs: Costs, moved: float) -> float:
    """Milliseconds of an operation that reads and writes so many bytes."""
    return seconds_to_ms(moved, costs.elementwise_gbps * 1e9)


def transfer(costs: Costs, moved: float) -> float:
    """Milliseconds in which the host turns so many bytes to the layout of surfaces or back."""
    return seconds_to_ms(moved, costs.surface_gbps * 1e9)


def head(costs: Costs, values: float) -> tuple[float, float]:
    """Milliseconds that an output head of so many float16 weights adds to a step of one token:
    in pieces on the engine, and on the host."""
    n = 2 * values  # bytes, and operations
    return product(costs, n, n, conv=True), host(costs, n, n)


def host(costs: Costs, flops: float, moved: float) -> float:
    """Milliseconds of a part that runs on the CPU: arithmetic, or reading its operands."""
    arithmetic = seconds_to_ms(flops, costs.host_gflops * 1e9)
    return max(arithmetic, seconds_to_ms(moved, costs.host_gbps * 1e9))


def compiling(costs: Costs, weight_bytes: float) -> float:
    """Milliseconds of compiling one program."""
    return costs.compile_ms + costs.compile_ms_per_mb * weight_bytes / 1e6


@attrs.frozen
class Estimate:
    """What one evaluation of a program takes, and why."""

    dispatch_ms: float
    compute_ms: float
    flops: float  # of products
    weight_bytes: int
    peak_bytes: int  # of activations that live at once

    @property
    def ms(self) -> float:
        return self.dispatch_ms + self.compute_ms


def estimate(program: Program, profile: Profile) -> Estimate:
    """What the Neural Engine takes for one evaluation; the host's part is not in it."""
    main, costs = program.main, profile.costs
    kinds, weights = main.types(), weight_sizes(main)
    live = live_bytes(main)
    total = flops = 0.0
    for statement, held in zip(main.statements, live, strict=True):
        ms, done = _statement(statement, kinds, weights, costs)
        total += ms * (costs.sram_slowdown if held > costs.sram_bytes else 1.0)
        flops += done
    peak = max(live, default=0)
    return Estimate(costs.dispatch_ms, total, flops, sum(weights.values()), peak)


def weight_sizes(main: Function) -> dict[str, int]:
    """Stored bytes of each constant that lies in a weight file, and of each palette."""
    sizes: dict[str, int] = {}
    for statement in main.statements:
        given = [*statement.attributes.values(), *_parts(statement)]
        stored = [a.type for a in given if isinstance(a, Literal) and isinstance(a.data, Blob)]
        held = sum(map(nbytes, stored))
        if statement.op == "constexpr_lut_to_dense":  # takes over what its operands hold
            held += sum(sizes.pop(name, 0) for name in statement.refs())
        if held:
            sizes[statement.name] = held
    return sizes


def live_bytes(main: Function) -> list[int]:
    """While each statement runs: the bytes of the activations that are still needed."""
    last = {name: len(main.statements) for name in main.outputs}
    for i, statement in enumerate(main.statements):
        for name in statement.refs():
            last[name] = max(last.get(name, 0), i)
    kinds, constant = main.types(), _constants(main.statements)
    size = {name: 0 if name in constant else nbytes(kind) for name, kind in kinds.items()}
    held, result = sum(size[value.name] for value in main.inputs), []
    ends: dict[int, list[str]] = {}
    for name, at in last.items():
        ends.setdefault(at, []).append(name)
    for i, statement in enumerate(main.statements):
        held += sum(size[value.name] for value in statement.results)
        result.append(held)
        held -= sum(size.get(name, 0) for name in ends.get(i, ()))
    return result


def _constants(statements: Iterable[Statement]) -> set[str]:
    made = [s for s in statements if s.op == "const" or s.op.startswith("constexpr")]
    return {value.name for statement in made for value in statement.results}


def _parts(statement: Statement) -> list[Ref | Literal]:
    found: list[Ref | Literal] = []
    for argument in statement.args.values():
        found += argument if isinstance(argument, tuple) else [argument]
    return found


def _statement(
    statement: Statement, kinds: dict[str, Type], weights: dict[str, int], costs: Costs
) -> tuple[float, float]:
    """Milliseconds and floating point operations of products."""
    if statement.op in FREE:
        return 0.0, 0.0
    names = [name for name in statement.refs() if name in kinds]
    read = sum(weights.get(name, 0) for name in names)
    out = sum(nbytes(value.type) for value in statement.results)
    if statement.op not in PRODUCTS:
        moved = out + sum(nbytes(kinds[n]) for n in names if kinds[n].dims and n not in weights)
        reading = seconds_to_ms(read, costs.weight_gbps * 1e9)
        return max(elementwise(costs, moved), reading), 0.0
    flops = 2.0 * statement.results[0].type.size * _summed(statement, kinds)
    if statement.op == "scaled_dot_product_attention":
        flops *= 2
    return product(costs, flops, read, conv=statement.op == "conv"), flops


def _summed(statement: Statement, kinds: dict[str, Type]) -> int:
    """How many products go into one value of the result."""
    key = {"conv": "weight", "linear": "weight", "matmul": "x"}.get(statement.op, "key")
    argument = statement.args.get(key)
    kind = kinds[argument.name] if isinstance(argument, Ref) else None
    if isinstance(argument, Literal):
        kind = argument.type
    dims = [d or 1 for d in kind.dims or ()] if kind else []
    if not dims:
        return 1
    if statement.op == "conv":
        return math.prod(dims[1:])
    if statement.op == "scaled_dot_product_attention":
        return dims[-2]
    if statement.op == "matmul":
        return _inner(statement, kinds, dims)
    return dims[-1]


def _inner(statement: Statement, kinds: dict[str, Type], x: list[int]) -> int:
    """Of a matmul, whatever its flags are: sizes of x, y and the result tell it."""
    out = math.prod(d or 1 for d in (statement.results[0].type.dims or ())[-2:])
    y = statement.args.get("y")
    dims = (
        kinds[y.name].dims
        if isinstance(y, Ref)
        else y.type.dims
        if isinstance(y, Literal)
        else ()
    )
    other = math.prod(d or 1 for d in (dims or ())[-2:])
    return max(1, math.isqrt(math.prod(x[-2:]) * other // max(out, 1)))  # (m k)(k n) / (m n)

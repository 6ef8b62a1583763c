"""Programs of a graph on the simulator, and by the reference: what fills their ports is named
by plain texts, the graph's own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from umbel_ane.compiler.ir import Graph
from umbel_ane.compiler.lowered import Lowered
from umbel_ane.compiler.ports import Port
from umbel_ane.compiler.programs import Compiled, compile_split
from umbel_ane.compiler.reference import evaluate
from umbel_ane.drivers import Request
from umbel_ane.drivers.simulator import Simulator
from umbel_ane.drivers.simulator.checks import CONSTRAINTS, LIMITS, Made
from umbel_ane.mil.parse import parse
from umbel_ane.profile import Profile

Values = Mapping[str, np.ndarray]
KINDS = {"fp16": np.float16, "fp32": np.float32}


def lowered(graph: Graph) -> Lowered:
    return Lowered(
        graph, {n.name: n.name for n in graph.inputs()}, {n: n for n in graph.outputs}
    )


def compiled(graph: Graph, profile: Profile, **options: object) -> list[Compiled]:
    return compile_split(lowered(graph), profile, **options)


def broken_rules(program: Compiled) -> list[tuple[int, str, str]]:
    """What breaks one of the 20 constraints or a limit; figures of speed (17) are left out."""
    sizes = (
        [program.input_bytes] * len(program.inputs),
        [program.output_bytes] * len(program.outputs),
    )
    made = Made(
        program.profile, parse(program.text.decode()), program.weights, *sizes, program.text
    )
    rules = [r for r in (*CONSTRAINTS.values(), *LIMITS) if r.number != 17]
    return [(rule.number, rule.fact, found) for rule in rules for found in rule.check(made)]


def by_simulator(programs: Sequence[Compiled], values: Values) -> dict[str, np.ndarray]:
    """The split's outputs, each program compiled, loaded and evaluated."""
    driver = Simulator(programs[0].profile)
    known: dict[object, np.ndarray] = dict(values)
    for program in programs:
        model = driver.model(driver.descriptor(program.text, program.weights))
        model.compile()
        model.load()
        order = model.attributes()
        inputs = {p.name: driver.surface(program.input_bytes) for p in program.inputs}
        outputs = {p.name: driver.surface(program.output_bytes) for p in program.outputs}
        for port in program.inputs:
            with inputs[port.name].lock() as memory:
                _view(memory, port)[...] = _padded(known[port.source], port)
        model.evaluate(
            Request([inputs[n] for n in order.inputs], [outputs[n] for n in order.outputs])
        )
        for port in program.outputs:
            with outputs[port.name].lock(read_only=True) as memory:
                known[port.source] = _view(memory, port).copy()
        model.release()
    return {k: v for k, v in known.items() if isinstance(k, str) and k not in values}


def by_reference(programs: Sequence[Compiled], values: Values, mode="fp16"):
    """The same, from the programs' own graphs."""
    known: dict[object, np.ndarray] = dict(values)
    for program in programs:
        given = {p.name: _padded(known[p.source], p) for p in program.inputs}
        made = evaluate(program.graph, given, mode)
        known.update({p.source: made[p.name] for p in program.outputs})
    return {k: v for k, v in known.items() if isinstance(k, str) and k not in values}


def close(got: Values, wanted: Values, limit: float) -> None:
    """Every output within `limit` of its largest value; what is padded is not looked at."""
    for name, values in wanted.items():
        found = got[name][..., : values.shape[-1]].astype(np.float32)
        scale = float(np.abs(values).max()) or 1.0
        np.testing.assert_allclose(found / scale, values / scale, rtol=0, atol=limit)


def _view(memory: np.ndarray, port: Port) -> np.ndarray:
    return np.ndarray(port.shape, KINDS[port.dtype], memory)


def _padded(values: np.ndarray, port: Port) -> np.ndarray:
    more = [(0, m - n) for n, m in zip(values.shape, port.shape, strict=True)]
    return np.pad(values, more).astype(KINDS[port.dtype])

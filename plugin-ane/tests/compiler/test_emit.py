"""MIL text and weights of graphs: read back, checked by the rules, run on the simulator."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import Sample, samples
from simulated import broken_rules, by_reference, by_simulator, close, compiled
from umbel.errors import DeviceError
from umbel_ane.compiler.builder import IRBuilder
from umbel_ane.compiler.emit import emit, port_name
from umbel_ane.compiler.ir import OPS, Graph, Node, Weight
from umbel_ane.compiler.reference import evaluate
from umbel_ane.mil.blob import BlobFile
from umbel_ane.mil.parse import parse
from umbel_ane.mil.program import Blob, Literal
from umbel_ane.mil.text import write
from umbel_ane.profile import load

STRICT = load("orion-m4-macos15")
PROFILES = ("orion-m4-macos15", "m1", "m4-macos27", "permissive")
ROUNDING = 2e-3  # float16's, a few operations on each other


def weight(name: str, *shape: int) -> tuple[np.ndarray, Weight]:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float16)
    return values, Weight(name, lambda: values)


def every_operation() -> tuple[Graph, dict[str, np.ndarray]]:
    b = IRBuilder("node")
    x, y = b.input("x", (1, 64, 1, 32)), b.input("y", (1, 64, 1, 32))
    h = b.conv1x1(x, b.weight(weight("a", 96, 64, 1, 1)[1], (96, 64, 1, 1)))
    h = b.add(h, b.weight(weight("bias", 1, 96, 1, 1)[1], (1, 96, 1, 1)))
    some, rest = b.split(h, 1, [32, 64])
    thirds = b.split(h, 1, [32, 32, 32])
    s = b.add(b.unary("relu", some), b.unary("tanh", thirds[1]))
    s = b.add(s, b.mul(b.unary("sigmoid", thirds[2]), b.unary("neg", thirds[0])))
    heads = b.transpose(b.reshape(rest, (1, 4, 16, 32)), (0, 1, 3, 2))
    p = b.softmax(b.mul(b.matmul(heads, heads, transpose_y=True), 0.25))
    a = b.reshape(b.matmul(heads, p, transpose_x=True, transpose_y=True), (1, 64, 1, 32))
    a = b.sub(b.unary("identity", a), y)
    mean = b.reduce("reduce_mean", b.mul(a, a), 1)
    a = b.mul(a, b.unary("rsqrt", b.add(mean, 0.01)))
    a = b.mul(b.cast(b.unary("sqrt", b.cast(b.mul(a, a), "fp32")), "fp16"), 0.5)
    e = b.unary("exp", b.mul(b.reduce("reduce_sum", a, 1), 0.01))
    e = b.pow(b.add(e, b.reduce("reduce_max", a, 1)), -0.5)
    cut = b.slice(b.pad(a, (0, 0, 0, 1), (0, 2, 0, 0)), (0, 2, 0, 1), (1, 64, 1, 32))
    graph = Graph({"out": b.mul(cut, e), "s": s, "copy": x, "again": s})
    rng = np.random.default_rng(0)
    return graph, {n: rng.standard_normal((1, 64, 1, 32)).astype(np.float16) for n in "xy"}


def test_the_graph_has_every_operation() -> None:
    assert {n.op for n in every_operation()[0].nodes()} == OPS


def test_every_operation_can_be_written() -> None:
    """As it is, without passes: 26 operations, all emitted."""
    graph, _ = every_operation()
    made = emit(graph, ["x", "y"], list(graph.outputs), load("permissive")).program
    ops = {s.op for s in made.main.statements}
    assert ops >= {"conv", "split", "pad", "slice_by_size", "rsqrt", "identity", "cast", "pow"}
    again = parse(write(made))
    assert write(again) == write(made)


@pytest.mark.parametrize("name", PROFILES)
def test_programs_break_no_rule_and_compute_what_the_graph_says(name: str) -> None:
    graph, values = every_operation()
    programs = compiled(graph, load(name))
    assert [found for p in programs for found in broken_rules(p)] == []
    got = by_simulator(programs, values)
    close(got, evaluate(graph, values), 8e-3)
    close(got, by_reference(programs, values), ROUNDING)


@pytest.mark.parametrize("name", ["orion-m4-macos15", "m4-macos27"])
@settings(deadline=None, max_examples=25)
@given(sample=samples(10))
def test_random_programs_on_the_simulator(name: str, sample: Sample) -> None:
    programs = compiled(sample.graph, load(name))
    wanted = by_reference(programs, sample.values)
    if not all(np.isfinite(v).all() and np.abs(v).max() < 3e4 for v in wanted.values()):
        return  # the profiles' own cliffs are not asked here
    assert [found for p in programs for found in broken_rules(p)] == []
    close(by_simulator(programs, sample.values), wanted, ROUNDING)


def test_ports_are_sorted_as_declared() -> None:
    """Constraints 3 and 19, for more than ten and more than a hundred of them."""
    for count in (1, 3, 11, 101):
        names = [port_name("a", i, count) for i in range(count)]
        assert names == sorted(names)
        assert len(names[0]) >= 3


def test_many_ports_are_bound_as_they_are_filled() -> None:
    b = IRBuilder()
    parts = [b.input(f"x{i}", (1, 4, 1, 16)) for i in range(12)]
    graph = Graph({f"y{i}": b.mul(x, float(i + 1)) for i, x in enumerate(parts)})
    programs = compiled(graph, STRICT)
    assert broken_rules(programs[0]) == []
    values = {f"x{i}": np.full((1, 4, 1, 16), i, np.float16) for i in range(12)}
    close(by_simulator(programs, values), evaluate(graph, values), 0)


def test_a_split_is_one_statement() -> None:
    b = IRBuilder()
    parts = b.split(b.input("x", (1, 64, 1, 16)), 1, [16, 16, 32])
    program = compiled(Graph({"y": b.add(parts[0], parts[1]), "z": parts[2]}), STRICT)[0]
    splits = [s for s in parse(program.text.decode()).main.statements if s.op == "split"]
    assert [len(s.results) for s in splits] == [3]


def projection(values: np.ndarray, key: object = "w", count: int = 1) -> Graph:
    b = IRBuilder()
    y = b.input("x", (1, 64, 1, 16))
    for i in range(count):
        name = key if count == 1 else (key, i)
        y = b.conv1x1(y, b.weight(Weight(name, lambda: values), (64, 64, 1, 1)))
    return Graph({"y": y})


def test_other_weights_have_another_text() -> None:
    """Strict profiles know a program by its text and the paths in it."""
    values = np.ones((64, 64), np.float16)
    texts = {compiled(projection(v), STRICT)[0].text for v in (values, values * 2, values)}
    assert len(texts) == 2
    keys = {compiled(projection(v), STRICT)[0].key for v in (values, values * 2, values)}
    assert len(keys) == 2


def test_with_a_version_no_weight_is_read_for_the_text() -> None:
    def read() -> np.ndarray:
        raise AssertionError

    b = IRBuilder()
    w = b.weight(Weight("w", read), (64, 64, 1, 1))
    graph = Graph({"y": b.conv1x1(b.input("x", (1, 64, 1, 16)), w)})
    one, other = (compiled(graph, STRICT, version=v)[0].text for v in ("model 1", "model 2"))
    assert one != other


def test_weights_lie_where_the_text_says() -> None:
    """And one that is used twice lies there once."""
    b = IRBuilder()
    (first, w), (bias, c) = weight("first", 96, 64, 1, 1), weight("bias", 1, 96, 1, 1)
    x, z = b.input("x", (1, 64, 1, 16)), b.input("z", (1, 64, 1, 16))
    y = b.add(b.conv1x1(x, b.weight(w, first.shape)), b.weight(c, bias.shape))
    other = b.conv1x1(z, IRBuilder().weight(w, first.shape))  # another node, the same values
    program = compiled(Graph({"y": b.add(y, other)}), STRICT)[0]
    main, files = parse(program.text.decode()).main, program.weights
    blobs = [
        s.attributes["val"].data
        for s in main.statements
        if s.op == "const" and isinstance(s.attributes["val"], Literal)
    ]
    places = {d for d in blobs if isinstance(d, Blob)}
    (path,) = files
    read = [BlobFile(files[path]).read(d.offset) for d in places]
    assert sorted(r.size for r in read) == [96, 96 * 64]
    assert {r.tobytes() for r in read} == {first.tobytes(), bias.tobytes()}
    assert {d.offset % 64 for d in places} == {0}


def test_the_size_of_a_file_is_known_before_it_is_made() -> None:
    emitted = compiled(projection(np.ones((64, 64), np.float16), count=3), STRICT)[0].emitted
    assert [f.nbytes for f in emitted.weights.values()] == [
        len(f.read()) for f in emitted.weights.values()
    ]


def test_weights_that_float16_cannot_hold_are_refused() -> None:
    values = np.full((64, 64), 1e6, np.float32)
    program = compiled(projection(values, "blk.0.attn_q"), STRICT)[0]
    with pytest.raises(DeviceError, match=r"blk\.0\.attn_q"):
        _ = program.text


def test_an_output_may_be_an_input_a_constant_or_another_output() -> None:
    """Constraint 14: outputs are results of statements, so they are copied."""
    b = IRBuilder()
    x = b.input("x", (1, 4, 1, 16))
    y = b.unary("relu", x)
    number = b.const(np.arange(64, dtype=np.float16).reshape(1, 4, 1, 16))
    graph = Graph({"copy": x, "y": y, "again": y, "fixed": number})
    programs = compiled(graph, STRICT)
    assert broken_rules(programs[0]) == []
    values = {"x": np.random.default_rng(0).standard_normal((1, 4, 1, 16)).astype(np.float16)}
    close(by_simulator(programs, values), evaluate(graph, values), 0)


def test_numbers_keep_their_bits_in_the_text() -> None:
    b = IRBuilder()
    x: Node = b.input("x", (1, 4, 1, 16))
    y = b.add(b.mul(x, 1 / 768), 1e-5)
    (program,) = compiled(Graph({"y": y}), attrs.evolve(STRICT, refused=frozenset()))
    literals = [
        s.attributes["val"].data
        for s in parse(program.text.decode()).main.statements
        if s.op == "const"
    ]
    assert set(literals) == {float(np.float16(1 / 768)), float(np.float16(1e-5))}

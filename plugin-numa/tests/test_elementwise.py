"""Elementwise operations, norms, moves, sums and state spaces: the same bits from all kernels,
for any number of threads, place in a row, batch and chunking. Conformance tests the rest.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import numpy as np
import pytest
from umbel.gguf.types import F32
from umbel.graph import Role
from umbel.hookspecs import Slot, SplitGraph
from umbel.ops import OPS
from umbel.ops.elementwise import cast
from umbel.ops.rows import top_k
from umbel_kit import cases
from umbel_kit.cases import Arg, Case
from umbel_numa.engine import Engine
from umbel_numa.library import variants
from umbel_numa.memory import NativeMemory
from umbel_numa.support import unsupported

KERNELS = [name for name, runs in variants().items() if runs]
UNARY = "sqr sqrt exp neg tanh relu sigmoid softplus silu gelu gelu_erf gelu_quick"
BINARY = "add sub mul div reglu swiglu geglu geglu_erf geglu_quick"
_uids = itertools.count(1)


class Engines:
    """Engines by kernels and threads, opened when they are asked for."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], Engine] = {}

    def get(self, kernels: str, threads: int) -> Engine:
        key = kernels, threads
        if key not in self.known:
            self.known[key] = Engine(threads, kernels=kernels)
        return self.known[key]

    def run(
        self,
        case: Case,
        arrays: Sequence[np.ndarray],
        kernels: str = KERNELS[0],
        threads: int = 1,
        place: int | None = None,
    ) -> np.ndarray:
        """The result of a case on these arrays, which are as their leaves hold them; it takes
        the memory of the input `place`."""
        engine = self.get(kernels, threads)
        graph = cases.graph(case, OPS, lambda arg: arg.stored_in(F32))
        (node,) = graph.outputs
        memory, slots = NativeMemory(engine), {}
        for t, array in zip(node.inputs, arrays, strict=True):
            if t.storage.role is Role.WEIGHT:
                slots[t.storage] = Slot(memory.store(t.storage, array))
            else:
                slots[t.storage] = Slot(memory.allocate(array.nbytes, "input"))
                slots[t.storage].buffer.write(0, array)
        slots[node] = Slot(memory.allocate(node.nbytes, "compute"))
        if place is not None:
            slots[node] = slots[node.inputs[place].storage]
        assert unsupported(node, engine) is None
        leaves = tuple(t.storage for t in node.inputs)
        split = SplitGraph(next(_uids), (node,), leaves, (node,), slots)
        engine.compute(split)
        engine.forget(split.uid)
        raw = slots[node].buffer.read(0, node.nbytes)
        if node.dtype.numpy is None:
            return raw.view(np.uint16).reshape(node.shape)
        return raw.view(node.dtype.numpy).reshape(node.shape)


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    found = Engines()
    yield found
    for engine in found.known.values():
        engine.close()


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Of all sizes, with infinities, NaN, zeros and numbers too small to be normal."""
    rng = np.random.default_rng(seed)
    flat = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 3, shape)).astype(np.float32)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 88.72, -87.33]
    if flat.size >= 3 * len(odd):
        flat.reshape(-1)[seed : seed + 2 * len(odd) : 2] = odd
    return flat


def bits(array: np.ndarray) -> np.ndarray:
    """All NaN are one: their signs and payloads are the processor's."""
    if array.dtype.kind != "f":
        return array
    alike = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return alike.view(f"u{array.dtype.itemsize}")


def scan(tokens: int, h: int, p: int, n: int, groups: int, decays: int) -> Case:
    b = Arg((2, tokens, groups, n))
    args = Arg((4, h, p, n), role=Role.STATE), Arg((2, tokens, h, p)), Arg((2, tokens, h))
    return Case("ssm_scan", (*args, Arg((h, decays)), b, b, Arg((2,), "i32")))


WORK = [
    *(Case(op, (Arg((5, 61)),)) for op in UNARY.split()),
    *(Case(op, (Arg((5, 61)), Arg((5, 61)))) for op in BINARY.split()),
    *(Case(op, (Arg((5, 61)), Arg((61,)))) for op in ("add", "div")),
    *(Case(op, (Arg((5, 61)), Arg((5, 1)))) for op in ("sub", "mul")),
    Case("scale", (Arg((5, 61)),), {"s": 0.3, "b": 1.1}),
    Case("clamp", (Arg((5, 61), layout="turned"),), {"min": -0.5, "max": 2.0}),
    *(Case("cast", (Arg((5, 61)),), {"dtype": t}) for t in ("f16", "bf16", "i32")),
    Case("cont", (Arg((37, 41), layout="turned"),)),
    Case("concat", (Arg((3, 5, 2)), Arg((3, 5, 19))), {"axis": 2}),
    *(Case("sum_rows", (Arg((3, n)),)) for n in (8, 61, 1000)),
    *(Case("rms_norm", (Arg((3, n)), Arg((n,))), {"eps": 1e-5}) for n in (61, 576)),
    Case("norm", (Arg((3, 200)), Arg((200,)), Arg((200,))), {"eps": 1e-5}),
    Case("top_k", (Arg((5, 61)),), {"k": 9}),
    *(Case("ssm_conv", (Arg((2, 37, 3 + t)), Arg((37, 4)))) for t in (1, 70)),
    *(scan(t, 37, 1, 16, 1, 16) for t in (1, 40)),
    *(scan(t, 4, 16, 27, 2, 1) for t in (1, 40)),
    scan(5, 6, 3, 5, 2, 1),
]


def inputs(case: Case) -> list[np.ndarray]:
    odd = not case.op.startswith("ssm") and "norm" not in case.op and case.op != "sum_rows"
    made = []
    for i, arg in enumerate(case.args):
        if arg.dtype == "i32":
            made.append(np.array([2, 1], np.int32))
        elif odd:
            made.append(values(arg.leaf_shape, i))
        else:
            rng = np.random.default_rng(i)
            made.append(rng.standard_normal(arg.leaf_shape).astype(np.float32))
    return made


@pytest.mark.parametrize("case", WORK, ids=str)
def test_all_kernels_and_any_number_of_threads_give_the_same_bits(
    case: Case, engines: Engines
) -> None:
    arrays = inputs(case)
    expected = bits(engines.run(case, arrays, "scalar"))
    for name, threads in itertools.product(KERNELS, (1, 2, 5)):
        got = bits(engines.run(case, arrays, name, threads))
        np.testing.assert_array_equal(got, expected, f"{name}, {threads} threads")


@pytest.mark.parametrize("op", [*UNARY.split(), *BINARY.split()])
def test_a_value_does_not_depend_on_its_place(op: str, engines: Engines) -> None:
    count = 2 if op in BINARY.split() else 1
    arrays = [values((70,), i) for i in range(count)]
    whole = engines.run(Case(op, (Arg((70,)),) * count), arrays)
    for start, stop in ((1, 70), (13, 14), (7, 40)):
        parts = [a[start:stop] for a in arrays]
        part = engines.run(Case(op, (Arg((stop - start,)),) * count), parts)
        np.testing.assert_array_equal(bits(part), bits(whole[start:stop]))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("place", [0, 1])
def test_a_result_may_take_the_memory_of_an_operand(
    place: int, threads: int, engines: Engines
) -> None:
    plain, turned = Arg((37, 41)), Arg((37, 41), layout="turned")
    for args in ((plain, plain), (turned, plain) if place else (plain, turned)):
        case = Case("swiglu", args)
        arrays = [values(arg.leaf_shape, i) for i, arg in enumerate(args)]
        got = engines.run(case, arrays, threads=threads, place=place)
        np.testing.assert_array_equal(bits(got), bits(engines.run(case, arrays)))


EXACT: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1),
    "tanh": (np.tanh, 3),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3),
    "softplus": (lambda x: np.logaddexp(0, x), 4),
}


@pytest.mark.parametrize("op", EXACT)
def test_functions_are_exact_to_a_few_units(op: str, engines: Engines) -> None:
    function, most = EXACT[op]
    small = np.geomspace(1e-30, 80, 9999)
    x = np.concatenate([np.linspace(-87.3, 88.7, 20001), small, -small, [0.0]])
    x = x.astype(np.float32)
    exact = function(x.astype(np.float64))
    got = engines.run(Case(op, (Arg(x.shape),)), [x])
    units = np.abs(got - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert units[np.abs(exact) > 1.2e-38].max() <= most


def test_exp_ends_where_float32_does(engines: Engines) -> None:
    x = np.array([-np.inf, -1e30, -87.4, 88.73, 1e30, np.inf, np.nan, -0.0], np.float32)
    got = engines.run(Case("exp", (Arg((8,)),)), [x])
    np.testing.assert_array_equal(got, [0, 0, 0, np.inf, np.inf, np.inf, np.nan, 1])


@pytest.mark.parametrize("sizes", [(37, 1, 16, 1, 16), (4, 16, 27, 2, 1)], ids=str)
def test_a_scan_in_pieces_gives_the_same_bits(
    sizes: tuple[int, int, int, int, int], engines: Engines
) -> None:
    h, p, n, _, _ = sizes
    tokens, width = 75, h * p
    state, x, dt, a, b, c, ids = inputs(scan(tokens, *sizes))
    whole = engines.run(scan(tokens, *sizes), [state, x, dt, a, b, c, ids])
    outputs = []
    for start, stop in itertools.pairwise((0, 1, 34, tokens)):
        parts = [m[:, start:stop].copy() for m in (x, dt, b, c)]
        case = scan(stop - start, *sizes)
        got = engines.run(case, [state, *parts[:2], a, *parts[2:], ids])
        size = 2 * (stop - start) * width
        outputs.append(got[:size].reshape(2, stop - start, width))
        state[ids] = got[size:].reshape(2, h, p, n)
    joined = np.concatenate([np.concatenate(outputs, axis=1).ravel(), got[size:]])
    np.testing.assert_array_equal(bits(joined), bits(whole))


def test_a_convolution_in_pieces_gives_the_same_bits(engines: Engines) -> None:
    case = Case("ssm_conv", (Arg((2, 37, 78)), Arg((37, 4))))
    sx, kernel = inputs(case)
    whole = engines.run(case, [sx, kernel])
    for start, stop in itertools.pairwise((0, 1, 34, 75)):
        part = Case("ssm_conv", (Arg((2, 37, stop - start + 3)), Arg((37, 4))))
        got = engines.run(part, [sx[:, :, start : stop + 3].copy(), kernel])
        np.testing.assert_array_equal(bits(got), bits(whole[:, start:stop]))


@pytest.mark.parametrize("op", ["rms_norm", "norm", "sum_rows", "top_k"])
def test_a_row_does_not_know_its_neighbours(op: str, engines: Engines) -> None:
    how: Mapping[str, float] = {"sum_rows": {}, "top_k": {"k": 5}}.get(op, {"eps": 1e-5})
    x = inputs(Case("sum_rows", (Arg((7, 300)),)))[0]
    whole = engines.run(Case(op, (Arg((7, 300)),), how), [x], threads=2)
    for row in range(7):
        alone = engines.run(Case(op, (Arg((1, 300)),), how), [x[row]])
        np.testing.assert_array_equal(alone[0], whole[row])


def test_the_largest_of_many(engines: Engines) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-500, 500, (2, 100_000)).astype(np.float32)  # with many that are equal
    x[:, ::777], x[0, 5:9], x[1] = np.nan, np.inf, -np.abs(x[1])
    for k in (1, 40, 100_000):
        got = engines.run(Case("top_k", (Arg(x.shape),), {"k": k}), [x])
        np.testing.assert_array_equal(got, top_k(x, k=k))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i32"])
def test_casts_round_as_the_reference(dtype: str, engines: Engines) -> None:
    rng = np.random.default_rng(5)
    odd = [65504, 65519.9, 65520, -65520, 2.0**-24, 2.0**-25, 3 * 2.0**-26, 3.4e38]
    odd += [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 2.5, -2.5, 1e-45]
    odd += [np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31)]
    anything = rng.integers(0, 1 << 32, 4000, np.uint32).view(np.float32)
    x = np.concatenate([anything, np.array(odd, np.float32)])
    got = engines.run(Case("cast", (Arg(x.shape),), {"dtype": dtype}), [x])
    with np.errstate(all="ignore"):
        expected = cast(x, dtype=dtype)
    if dtype == "bf16":
        got = (got.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(got, expected)


def test_what_cannot_be_computed_is_refused_with_a_reason(engines: Engines) -> None:
    ask = partial(unsupported, engine=engines.get(KERNELS[0], 1))
    states = attrs.evolve(scan(1, 4, 1, 32, 1, 1).args[0], dtype="q8_0")
    odd = scan(1, 4, 1, 32, 1, 1)
    for case, words in (
        (Case("add", (Arg((3,), "f16"), Arg((3,)))), "it computes in f32, not f16"),
        (Case("rms_norm", (Arg((3,), "bf16"),), {"eps": 0.1}), "it computes in f32, not bf16"),
        (
            attrs.evolve(odd, args=(states, *odd.args[1:])),
            "it keeps states as f32, f16 or bf16",
        ),
    ):
        graph = cases.graph(case, OPS, lambda arg: arg.stored_in(F32))
        assert words in (ask(graph.outputs[0]) or "")

"""What programs do that were compiled: order and size of surfaces, weights, numbers, time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from umbel_ane.drivers import AneError
from umbel_ane.experiments.bench import ROOM, Bench, Found, Loaded, Text
from umbel_ane.experiments.compiles import SHAPE, C, S, X, plain, square
from umbel_ane.mil.program import Ref, Type
from umbel_ane.mil.text import write

SIZES = (1024, 4096, 16384, 32768, 49152, ROOM)  # of surfaces for 1024 bytes of values
EVALUATIONS = 100
VALUES = np.linspace(-1, 1, C * S, dtype=np.float32).astype(np.float16).reshape(SHAPE)

Experiment = Callable[[Bench], Iterator[Found]]


def convolution(bench: Bench) -> Iterator[Found]:
    """A plain program from its beginning to its end, and again with other weights."""
    text = plain()
    (weight,) = text.weights("w.bin", square(2.0))
    y = text.conv(X, weight, SHAPE)
    with bench.loaded(text, y) as program:
        spent = bench.spent
        took = f"compile {spent['compile']:.1f} ms, load {spent['load']:.1f} ms"
        found = program.run({"x": VALUES})[y.name]
        wrong = float(np.abs(found - 2 * VALUES.astype(np.float32)).max())
        right = "right" if wrong < 1e-2 else f"wrong by {wrong:.3g}"
        yield Found(
            "a 1x1 convolution", f"{right}; {took}, evaluate {spent['evaluate']:.2f} ms"
        )
        kept = "yes" if program.model.compiled_exists() else "no"
        yield Found("compiled_exists after a compile", kept)
        yield _latency(bench, program)
        yield _reloaded(bench, program, text, y)
    other = Text(text.inputs)
    other.weights("w.bin", square(3.0))
    data = write(text.program(y)).encode()
    ids = {bench.driver.descriptor(data, t.files).hex_id for t in (text, other)}
    of_contents = len(ids) == 2
    yield Found(
        "the identifier depends on what weight files hold",
        "yes" if of_contents else "no",
        "id_of_contents",
        lambda p: p.id_of_contents == of_contents,
    )


def _latency(bench: Bench, program: Loaded) -> Found:
    with program.request({"x": VALUES}) as (request, _):
        model = program.model
        times = [
            bench.timed("evaluate", lambda: model.evaluate(request)) for _ in range(EVALUATIONS)
        ]
    low, middle, high = np.percentile(times, (5, 50, 95))
    answer = f"{middle:.3f} ms (5 %: {low:.3f}, 95 %: {high:.3f})"
    return Found(f"one dispatch, median of {EVALUATIONS}", answer)


def _reloaded(bench: Bench, program: Loaded, text: Text, y: Ref) -> Found:
    """Unload, overwrite the weight file, load: which weights are used?"""
    what, other = "after unload, rewrite, load", Text(text.inputs)
    other.weights("w.bin", square(3.0))
    model = program.model
    try:
        model.unload()
        for path, data in other.files.items():
            model.rewrite(path, data)
        bench.timed("load", model.load)
        found = program.run({"x": VALUES})[y.name]
    except AneError as error:
        return Found(what, f"failed: {error.text or error.what}")
    factor = float(found.reshape(-1)[0] / VALUES.reshape(-1)[0])
    reload = "reread" if abs(factor - 3) < 0.1 else "snapshot"
    answer = f"{reload}: the factor was 2, 3 was written, it is {factor:.2f}"
    return Found(what, answer, "reload", lambda p: p.reload == reload)


def outputs(bench: Bench) -> Iterator[Found]:
    """A program of one input and two outputs that are declared in the other order."""
    shape = (1, 16, 1, 32)
    text = plain(shape=shape)
    q = text.add("add", shape, "fp16", "q", x=X, y=X)
    p = text.add("mul", shape, "fp16", "p", x=X, y=X)
    values = np.full(shape, 3.0, np.float16)
    with bench.loaded(text, q, p) as program:
        order = program.model.attributes().outputs
        yield Found("outputs q, p, as the driver tells them", ", ".join(order))
        found = program.run({"x": values}, outputs=("q", "p"))
        binding = {6.0: "declared", 9.0: "sorted"}.get(float(found["q"].max()), "neither")
        answer = f"{binding}: what is bound first is {found['q'].max():g} (q is 6, p is 9)"
        yield Found("how outputs are bound", answer, "binding", lambda p: p.binding == binding)
        uniform = bool(_error(program, {"x": values}, sizes={"p": 2 * ROOM}))
        answer = "refused" if uniform else "taken"
        yield Found(
            "outputs of two sizes",
            answer,
            "uniform_outputs",
            lambda p: p.uniform_outputs == uniform,
        )
        yield _least(program, values)
        values[:] = np.nan
        drops = not np.isnan(program.run({"x": values})["q"]).any()
        answer = "becomes a number" if drops else "stays NaN"
        yield Found("NaN", answer, "drops_nan", lambda p: p.drops_nan == drops)


def _least(program: Loaded, values: np.ndarray) -> Found:
    """The smallest surface, for values that fit into each."""
    names = ("x", "p", "q")
    sizes = [
        n for n in SIZES if not _error(program, {"x": values}, sizes=dict.fromkeys(names, n))
    ]
    if not sizes:
        return Found("the smallest surface", f"none of {', '.join(map(str, SIZES))} bytes")
    least = min(sizes)
    below = max((n for n in SIZES if n < least), default=0)
    answer = f"{least} bytes" + (f"; {below} are refused" if below else "")
    return Found(
        "the smallest surface",
        answer,
        "min_surface",
        lambda p: below < max(p.min_surface, 1) <= least,
    )


def inputs(bench: Bench) -> Iterator[Found]:
    """Two inputs that are declared in the other order; b - a."""
    kind = Type("fp16", SHAPE)
    text = Text({"b": kind, "a": kind})
    y = text.add("sub", SHAPE, x=Ref("b"), y=Ref("a"))
    given = {"b": np.full(SHAPE, 5.0, np.float16), "a": np.full(SHAPE, 3.0, np.float16)}
    with bench.loaded(text, y) as program:
        said = _error(program, given)
        many = not said
        yield Found(
            "two inputs",
            "taken" if many else f"refused: {said}",
            "max_inputs",
            lambda p: (p.max_inputs != 1) == many,
        )
        if not many:
            return
        found = float(program.run(given, inputs=("b", "a"))[y.name].max())
        binding = {2.0: "declared", -2.0: "sorted"}.get(found, "neither")
        answer = f"{binding}: 5 - 3 is {found:g} where they are bound as declared"
        yield Found("how inputs are bound", answer, "binding", lambda p: p.binding == binding)
        uniform = bool(_error(program, given, sizes={"b": 2 * ROOM}))
        answer = "refused" if uniform else "taken"
        yield Found(
            "inputs of two sizes",
            answer,
            "uniform_inputs",
            lambda p: p.uniform_inputs == uniform,
        )


def products(bench: Bench) -> Iterator[Found]:
    """A matmul over 48 values, and one whose result is 40000."""
    zeros = float(_product(bench, 48, 1.0).max()) == 0
    yield Found(
        "a matmul over 48 values",
        "zeros" if zeros else "right",
        "inner_multiple",
        lambda p: (48 % p.inner_multiple > 0) == zeros,
    )
    largest = float(_product(bench, 64, 25.0).max())
    saturates = not np.isfinite(largest)
    yield Found(
        "a matmul whose result is 40000",
        f"{largest:g}",
        "saturates_at",
        lambda p: (0 < p.saturates_at < 40000) == saturates,
    )


def _product(bench: Bench, n: int, value: float) -> np.ndarray:
    shape = (1, 1, n, n)
    text = plain(shape=shape)
    y = text.add("matmul", shape, x=X, y=X, transpose_x=False, transpose_y=False)
    with bench.loaded(text, y) as program:
        return program.run({"x": np.full(shape, value, np.float16)})[y.name]


def slices(bench: Bench) -> Iterator[Found]:
    text = plain()
    y = text.add("slice_by_index", (1, C, 1, 16), x=X, begin=(0, 0, 0, 16), end=(1, C, 1, S))
    with bench.loaded(text, y) as program:
        largest = float(program.run({"x": np.full(SHAPE, 5000.0, np.float16)})[y.name].max())
    saturates = abs(largest - 5000) > 8
    yield Found(
        "5000 in a slice from column 16",
        f"{largest:g}",
        "slice_saturates_at",
        lambda p: (0 < p.slice_saturates_at < 5000) == saturates,
    )


def attention(bench: Bench) -> Iterator[Found]:
    """A mask that leaves the first of 32 positions: each row becomes that one."""
    shape = (1, 1, 32, 64)
    text = plain(shape=shape)
    mask = np.full((1, 1, 32, 32), -1e4)
    mask[..., 0] = 0
    (given,) = text.weights("mask.bin", mask)
    args = {"query": X, "key": X, "value": X, "attn_mask": given}
    y = text.add("scaled_dot_product_attention", shape, **args)
    values = np.linspace(-1, 1, 32 * 64).astype(np.float16).reshape(shape)
    with bench.loaded(text, y) as program:
        found = program.run({"x": values})[y.name]
    heeds = bool(np.abs(found - values[:, :, :1].astype(np.float32)).max() < 0.01)
    yield Found(
        "the mask of scaled_dot_product_attention",
        "heeded" if heeds else "ignored",
        "masked_sdpa",
        lambda p: p.masked_sdpa == heeds,
    )


def computed_weights(bench: Bench) -> Iterator[Found]:
    """A convolution whose weight is its own input, turned."""
    text = plain()
    weight = text.add("transpose", (S, C, 1, 1), x=X, perm=(3, 1, 0, 2))
    y = text.conv(X, weight, (1, S, 1, S))
    with bench.loaded(text, y) as program:
        found = program.run({"x": np.ones(SHAPE, np.float16)})[y.name]
    heeds = bool(np.abs(found - C).max() < 1)
    yield Found(
        "a convolution with a computed weight",
        "right" if heeds else f"the weight is ignored: {found.max():g}, not {C}",
        "runtime_conv",
        lambda p: p.runtime_conv == heeds,
    )


def _error(
    program: Loaded, given: dict[str, np.ndarray], *, sizes: dict[str, int] | None = None
) -> str:
    """What an evaluation says against its surfaces; nothing if it runs."""
    try:
        program.run(given, sizes=sizes)
    except AneError as error:
        return error.text or error.what
    return ""


EXPERIMENTS: tuple[Experiment, ...] = (
    convolution,
    outputs,
    inputs,
    products,
    slices,
    attention,
    computed_weights,
)

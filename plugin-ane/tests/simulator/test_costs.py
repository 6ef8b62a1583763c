"""The cost table against what Orion measured (arXiv 2603.06728): the schedule of GPT-2 124M,
its programs written as Orion cuts them."""

from __future__ import annotations

import attrs
import pytest
from ane_rig import HOW, STRICT, W, ints, of, program, say, tensor, weight
from umbel_ane import costs, profile
from umbel_ane.costs import estimate
from umbel_ane.mil.parse import parse
from umbel_ane.mil.program import Program

D, F, HEADS, LAYERS, VOCAB = 768, 3072, 12, 12, 50257
PROMPT, COLUMNS = 256, 16  # of a prefill (assumed), of a decode step
CELLS = 64  # of the cache, in the middle of what Orion generated
RATES = profile.load().costs
FP32 = 4


class Text:
    """Statements, each of the last one's result."""

    def __init__(self, s: int) -> None:
        self.s, self.body, self.count = s, "", 0

    def put(self, call: str, *shape: int, dtype: str = "fp16") -> str:
        self.count += 1
        name = f"n{self.count}"
        self.body += say(shape or (1, D, 1, self.s), name, call, dtype)
        return name

    def const(self, line: str) -> None:
        self.body += line

    def conv(self, x: str, out: int, inner: int) -> str:
        self.count += 1
        w, b = f"w{self.count}", f"b{self.count}"
        self.body += weight((out, inner, 1, 1), w) + weight((1, out, 1, 1), b)
        shape = (1, out, 1, self.s)
        y = self.put(f"conv({HOW}, weight = {w}, x = {x})", *shape)
        return self.put(f"add(x = {y}, y = {b})", *shape)

    def norm(self, x: str) -> str:
        """LayerNorm over channels: 10 operations."""
        one = (1, 1, 1, self.s)
        mean = self.put(f"reduce_mean(axes = ch, keep_dims = yes, x = {x})", *one)
        centred = self.put(f"sub(x = {x}, y = {mean})")
        square = self.put(f"mul(x = {centred}, y = {centred})")
        variance = self.put(f"reduce_mean(axes = ch, keep_dims = yes, x = {square})", *one)
        shifted = self.put(f"add(x = {variance}, y = eps)", *one)
        root = self.put(f"pow(x = {shifted}, y = half)", *one)
        normed = self.put(f"mul(x = {centred}, y = {root})")
        scaled = self.put(f"mul(x = {normed}, y = gain)")
        return self.put(f"add(x = {scaled}, y = gain)")

    def gelu(self, x: str) -> str:
        """By tanh, the cube by two products: 9 operations."""
        shape = (1, F, 1, self.s)
        cube = self.put(
            f"mul(x = {self.put(f'mul(x = {x}, y = {x})', *shape)}, y = {x})", *shape
        )
        inner = self.put(
            f"add(x = {x}, y = {self.put(f'mul(x = {cube}, y = c)', *shape)})", *shape
        )
        curve = self.put(f"tanh(x = {self.put(f'mul(x = {inner}, y = c)', *shape)})", *shape)
        shifted = self.put(f"add(x = {curve}, y = c)", *shape)
        halved = self.put(f"mul(x = {x}, y = c)", *shape)
        return self.put(f"mul(x = {shifted}, y = {halved})", *shape)

    def done(self, *outputs: str) -> Program:
        """With fp32 at the edges, as Orion has it."""
        head = ints("ch", 1) + weight((1, D, 1, 1), "gain")
        for name, value in (("eps", 1e-5), ("half", -0.5), ("c", 0.044715)):
            head += f'fp16 {name} = const()[name = string("{name}"), val = fp16({value})];\n'
        for name, dtype in (("h", "fp16"), ("f", "fp32")):
            head += (
                f'string {name} = const()[name = string("{name}"), val = string("{dtype}")];\n'
            )
        head += say((1, D, 1, self.s), "x", "cast(dtype = h, x = wide)")
        ends = [
            self.put(f"cast(dtype = f, x = {name})", 1, D, 1, self.s, dtype="fp32")
            for name in outputs
        ]
        kinds = {"wide": tensor((1, D, 1, self.s), "fp32")}
        return parse(program(kinds, head + self.body, *ends))


def projections(s: int) -> Program:
    """decode_proj: one norm, q, k, v."""
    t = Text(s)
    normed = t.norm("x")
    return t.done(*(t.conv(normed, D, D) for _ in range(3)))


def feed_forward(s: int) -> Program:
    t = Text(s)
    wide = t.gelu(t.conv(t.norm("x"), F, D))
    return t.done(t.put(f"add(x = {t.conv(wide, D, F)}, y = x)"))


def attention(s: int) -> Program:
    """prefill_attn: everything up to the residual, k and v as outputs too."""
    t, per, scores = Text(s), D // HEADS, (1, HEADS, s, s)
    t.const(ints("split", 1, HEADS, per, s) + ints("join", 1, D, 1, s) + ints("pm", 0, 1, 3, 2))
    t.const(weight((1, 1, s, s), "mask"))
    normed = t.norm("x")
    q, k, v = (t.conv(normed, D, D) for _ in range(3))
    heads = []
    for part in (q, k, v):
        cut = t.put(f"reshape(shape = split, x = {part})", 1, HEADS, per, s)
        heads.append(t.put(f"transpose(perm = pm, x = {cut})", 1, HEADS, s, per))
    flags = "transpose_x = no, transpose_y"
    logits = t.put(f"matmul({flags} = yes, x = {heads[0]}, y = {heads[1]})", *scores)
    logits = t.put(f"mul(x = {logits}, y = c)", *scores)
    logits = t.put(f"add(x = {logits}, y = mask)", *scores)
    weights = t.put(f"softmax(axis = gr, x = {logits})", *scores)
    mixed = t.put(f"matmul({flags} = no, x = {weights}, y = {heads[2]})", 1, HEADS, s, per)
    turned = t.put(f"transpose(perm = pm, x = {mixed})", 1, HEADS, per, s)
    joined = t.put(f"reshape(shape = join, x = {turned})")
    return t.done(t.put(f"add(x = {t.conv(joined, D, D)}, y = x)"), k, v)


def final_norm(s: int) -> Program:
    t = Text(s)
    return t.done(t.norm("x"))


def head() -> float:
    """Logits of one token on the CPU, float32."""
    return costs.host(RATES, 2.0 * VOCAB * D, VOCAB * D * FP32)


def cpu(weights: int) -> float:
    """A layer's part of one token on the CPU: products with so many weights, and attention."""
    read = weights + 2 * D * CELLS
    return costs.host(RATES, 2.0 * read, read * FP32)


def test_a_token_on_the_cpu_takes_3_48_ms() -> None:
    block = 4 * D * D + 2 * D * F
    assert LAYERS * cpu(block) + head() == pytest.approx(3.48, rel=0.02)


def test_a_token_with_the_neural_engine_takes_5_76_ms() -> None:
    """24 dispatches; the CPU has attention over the cache, the output projection, the head."""
    strict = profile.load()
    dispatches = [estimate(make(COLUMNS), strict) for make in (projections, feed_forward)]
    engine = LAYERS * sum(e.ms for e in dispatches)
    turned = LAYERS * costs.transfer(RATES, 6 * D * FP32)  # one column in or out of 6 surfaces
    assert len(dispatches) * LAYERS == 24
    assert engine + LAYERS * cpu(D * D) + head() + turned == pytest.approx(5.76, rel=0.02)


def test_a_prefill_takes_95_ms_when_its_programs_are_compiled() -> None:
    strict = profile.load()
    programs = [(attention(PROMPT), 4, LAYERS), (feed_forward(PROMPT), 2, LAYERS)]
    programs.append((final_norm(PROMPT), 2, 1))
    total = head()
    for made, surfaces, times in programs:
        turned = costs.transfer(RATES, surfaces * D * PROMPT * FP32)
        total += times * (estimate(made, strict).ms + turned)
    assert total == pytest.approx(95, rel=0.02)
    assert 24 * costs.compiling(RATES, 0) == pytest.approx(1015, rel=0.01)


def test_what_an_estimate_counts() -> None:
    made = estimate(projections(COLUMNS), profile.load())
    assert made.flops == 3 * 2.0 * D * D * COLUMNS
    assert made.weight_bytes == 3 * (D * D + D) * 2 + D * 2
    assert made.dispatch_ms == 0.095
    reading = made.weight_bytes / RATES.weight_gbps / 1e6
    assert reading < made.compute_ms < 1.3 * reading  # decode reads weights, no more


def test_beyond_the_sram_it_is_slower() -> None:
    """The same values, 40 MB at once or 20 MB."""

    def of_rows(n: int) -> costs.Estimate:
        shape = (1, n, 1, 1024)
        text = program({"x": tensor(shape)}, say(shape, "y", "relu(x = x)"), "y")
        return estimate(parse(text), profile.load())

    small, large = of_rows(5000), of_rows(10000)
    assert small.peak_bytes == 2 * 5000 * 1024 * 2
    assert small.peak_bytes < RATES.sram_bytes < large.peak_bytes
    assert large.compute_ms / small.compute_ms == pytest.approx(2 * RATES.sram_slowdown)


def test_memory_is_given_back() -> None:
    """A chain holds two values at once, however long it is."""
    shape, last, body = (1, 16, 1, 16), "x", ""
    for i in range(10):
        body += say(shape, f"y{i}", f"relu(x = {last})")
        last = f"y{i}"
    made = estimate(parse(program({"x": tensor(shape)}, body, last)), profile.load())
    assert made.peak_bytes == 2 * 16 * 16 * 2


def test_palettes_are_read_as_they_are_stored() -> None:
    kind, table = tensor((1024, 1024, 1, 1), "uint4"), tensor((1, 1, 1, 1, 16, 1))
    call = f"""constexpr_lut_to_dense(
        indices = {kind}(BLOBFILE(path = string("{W}"), offset = uint64(64))),
        lut = {table}(BLOBFILE(path = string("{W}"), offset = uint64(999936))))"""
    y = say((1, 1024, 1, 16), "y", f"conv({HOW}, weight = W, x = x)")
    x = {"x": tensor((1, 1024, 1, 16))}
    dense = program(x, weight((1024, 1024, 1, 1)) + y, "y")
    small = program(x, say((1024, 1024, 1, 1), "W", call) + y, "y")
    a, b = (estimate(parse(text), profile.load("m4-macos27")) for text in (dense, small))
    assert (a.weight_bytes, b.weight_bytes) == (2 << 20, (1 << 19) + 32)
    assert a.compute_ms > 3.5 * b.compute_ms


def test_rates_that_are_not_known_cost_nothing() -> None:
    rules = attrs.evolve(of(STRICT), costs=profile.Costs())
    made = estimate(projections(COLUMNS), rules)
    assert made.ms == made.dispatch_ms

"""The 20 constraints of Orion, each broken as someone would who does not know it; the symptom
is that of the table, under each profile that has it, and gone where one has not."""

from __future__ import annotations

import numpy as np
import pytest
from ane_rig import (
    CONV,
    HOW,
    LEAST,
    OTHERS,
    STRICT,
    W,
    blob,
    breaks,
    ints,
    of,
    program,
    run,
    say,
    tensor,
    weight,
)
from umbel_ane import costs, profile
from umbel_ane.drivers import AneError, Request
from umbel_ane.drivers.simulator import CONSTRAINTS, SimulatedCrash, Simulator
from umbel_ane.mil.parse import parse

S16 = (1, 16, 1, 16)
X = {"x": tensor(S16)}
ALL = (STRICT, *OTHERS)
COMPILE, INVALID = "ANECCompile", "InvalidMILProgram"


def draw(*shape: int, seed: int = 1) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).standard_normal(shape).astype(np.float16)
    return values


def refused(name: str, text: bytes, why: str, weights: dict[str, bytes] | None = None) -> None:
    driver = Simulator(profile.load(name))
    before = driver.compiles
    model = driver.model(driver.descriptor(text, weights or {}))
    with pytest.raises(AneError) as caught:
        model.compile()
    model.release()
    assert why in caught.value.text
    assert caught.value.domain == "com.apple.appleneuralengine.compiler"
    assert driver.compiles == before
    assert not model.compiled_exists()


def inference_fails(rules: str, text: bytes, sizes: dict[str, int]) -> None:
    kinds = parse(text).main.types()
    given = {v.name: draw(*(kinds[v.name].dims or ())) for v in parse(text).main.inputs}
    with pytest.raises(AneError) as caught:
        run(rules, text, given, sizes=sizes)
    assert caught.value.code == 0x1D
    assert "Program Inference error" in caught.value.text


def test_the_table_is_whole() -> None:
    assert sorted(CONSTRAINTS) == list(range(1, 21))


CONCAT = say((1, 32, 1, 16), "y", "concat(axis = gr, interleave = no, values = (x, x))")


def test_1_concat() -> None:
    text = program(X, CONCAT, "y")
    x = draw(*S16)
    for name in (STRICT, "m1"):
        refused(name, text, COMPILE)
        assert breaks(1, name, text)
    for name in ("m4-macos27", "maderix", "permissive"):
        assert np.array_equal(run(name, text, {"x": x})["y"], np.concatenate([x, x], 1))
        assert not breaks(1, name, text)


def test_2_outputs_of_two_sizes() -> None:
    text = program(X, say(S16, "y", "relu(x = x)") + say(S16, "z", "exp(x = x)"), "y", "z")
    sizes = {"y": LEAST, "z": 2 * LEAST}
    for name in (STRICT, "m1", "m4-macos27", "maderix"):
        inference_fails(name, text, sizes)
        assert breaks(2, name, text, outputs=list(sizes.values()))
    run("permissive", text, {"x": draw(*S16)}, sizes=sizes)


def test_3_outputs_in_another_order() -> None:
    """q, k, v as Orion binds them: what is read as q is k, and as k is v."""
    body = "".join(say(S16, name, f"mul(x = x, y = {name}s)") for name in "qkv")
    scalars = "".join(
        f'fp16 {n}s = const()[name = string("{n}s"), val = fp16({i})];\n'
        for i, n in enumerate("qkv", 1)
    )
    text, x = program(X, scalars + body, "q", "k", "v"), draw(*S16)
    for name in (STRICT, "m1"):
        got = run(name, text, {"x": x})
        factors = [float(np.median(got[n] / x.astype(np.float32))) for n in "qkv"]
        assert np.allclose(factors, [2, 1, 3], atol=1e-2)  # k, q, v: sorted
        assert breaks(3, name, text)
    got = run("permissive", text, {"x": x})
    assert np.allclose(got["q"], x)
    assert not breaks(3, "permissive", text)


def test_4_a_small_surface() -> None:
    text = program(X, say(S16, "y", "relu(x = x)"), "y")
    for name in (STRICT, "m1", "m4-macos27", "maderix"):
        inference_fails(name, text, {"x": 512, "y": LEAST})
        inference_fails(name, text, {"x": LEAST, "y": LEAST - 1})
        assert breaks(4, name, text, inputs=[512])
    run("permissive", text, {"x": draw(*S16)}, sizes={"x": 512, "y": 512})


def test_5_the_120th_compile() -> None:
    driver = Simulator(profile.load())
    made = [say(S16, "y", f"mul(x = x, y = c{i})") for i in range(121)]
    for i, body in enumerate(made):
        scalar = f'fp16 c{i} = const()[name = string("c{i}"), val = fp16({i})];\n'
        model = driver.model(driver.descriptor(program(X, scalar + body, "y"), {}))
        if i < 119:
            model.compile()
        else:
            with pytest.raises(AneError) as caught:
                model.compile()
            assert (caught.value.text, caught.value.code, caught.value.got) == ("", 0, None)
        model.release()
    assert driver.compiles == 119
    m1 = Simulator(profile.load("m1"))  # the same process
    with pytest.raises(SimulatedCrash):
        m1.model(m1.descriptor(program(X, made[0], "y"), {})).compile()
    assert breaks(5, STRICT, program(X, made[0], "y"), compiles=119)


def test_6_a_causal_mask() -> None:
    """One head of 16 positions: each sees all, whatever the mask says."""
    shape, scores = (1, 1, 16, 32), (1, 1, 16, 16)
    kinds = {"k": shape, "m": scores, "q": shape, "v": shape}
    call = "scaled_dot_product_attention(attn_mask = m, key = k, query = q, value = v)"
    text = program({n: tensor(s) for n, s in kinds.items()}, say(shape, "y", call), "y")
    given = {n: draw(*s, seed=i) for i, (n, s) in enumerate(kinds.items())}
    given["m"] = np.triu(np.full((16, 16), -1e4, np.float16), 1).reshape(scores)
    q, k, v = (given[n].astype(np.float64)[0, 0] for n in "qkv")

    def attended(mask: np.ndarray | float) -> np.ndarray:
        e = np.exp(q @ k.T / np.sqrt(32) + mask)
        result: np.ndarray = e / e.sum(1, keepdims=True) @ v
        return result

    masked, ignored = attended(given["m"][0, 0].astype(float)), attended(0.0)
    for name in (STRICT, "m1", "m4-macos27"):
        assert np.allclose(run(name, text, given)["y"], ignored, atol=2e-3)
        assert breaks(6, name, text)
    assert np.allclose(run("permissive", text, given)["y"], masked, atol=2e-3)


CONV_W = weight((16, 16, 1, 1)) + say(S16, "y", f"conv({HOW}, weight = W, x = x)")


def product(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    flat = w.reshape(16, 16).astype(np.float64) @ x.reshape(16, 16).astype(np.float64)
    return flat.reshape(S16)


@pytest.mark.parametrize("name", ALL)
def test_7_weights_after_a_reload(name: str) -> None:
    """Overwritten and loaded again: stale, or reread."""
    old, new, x = (draw(16, 16, seed=i) for i in range(3))
    driver = Simulator(profile.load(name))
    model = driver.model(driver.descriptor(program(X, CONV_W, "y"), {W: blob(old)}))
    model.compile()
    model.load()
    model.unload()
    model.rewrite(W, blob(new))
    model.load()
    a, b = driver.surface(LEAST), driver.surface(LEAST)
    with a.lock() as memory:
        memory[:512] = x.reshape(-1).view(np.uint8)
    model.evaluate(Request([a], [b]))
    with b.lock(read_only=True) as memory:
        got = memory[:512].view(np.float16).astype(np.float64).reshape(S16)
    model.release()
    stale, fresh = product(old, x), product(new, x)
    wanted = fresh if driver.profile.reload == "reread" else stale
    assert np.abs(got - wanted).max() < 0.02 < np.abs(stale - fresh).max()
    assert (name == "permissive") == (driver.profile.reload == "reread")


def test_8_an_offset_of_128() -> None:
    """That of the data, which lies where metadata is expected."""
    w, x = draw(16, 16), draw(*S16, seed=2)
    body = weight((16, 16, 1, 1), offset=128) + say(S16, "y", f"conv({HOW}, weight = W, x = x)")
    text, file = program(X, body, "y"), {W: blob(w)}
    for name in (STRICT, "m1"):
        got = run(name, text, {"x": x}, file)["y"]
        assert np.abs(np.nan_to_num(got) - product(w, x)).max() > 0.5
    for name in ("m4-macos27", "permissive"):
        refused(name, text, INVALID, file)
    assert breaks(8, STRICT, text, weights=file)
    good = program(X, CONV_W, "y")
    assert np.allclose(run(STRICT, good, {"x": x}, file)["y"], product(w, x), atol=0.02)
    assert not breaks(8, STRICT, good, weights=file)


@pytest.mark.parametrize("name", ALL)
def test_9_text_that_is_a_string(name: str) -> None:
    driver, text = Simulator(profile.load(name)), program(X, CONCAT, "y")
    with pytest.raises(SimulatedCrash, match="constraint 9"):
        driver.descriptor(text.decode(), {})  # type: ignore[arg-type]


def test_10_gelu() -> None:
    mode = 'string m = const()[name = string("m"), val = string("EXACT")];\n'
    text = program(X, mode + say(S16, "y", "gelu(mode = m, x = x)"), "y")
    for name in (STRICT, "m1", "m4-macos27", "maderix"):
        refused(name, text, COMPILE)
        assert breaks(10, name, text)
    got = run("permissive", text, {"x": np.full(S16, 1.0)})["y"]
    assert np.allclose(got, 0.8413447, atol=1e-3)  # the normal distribution's, at 1


@pytest.mark.parametrize("name", ALL)
def test_11_no_weights_at_all(name: str) -> None:
    driver, text = Simulator(profile.load(name)), program(X, CONCAT, "y")
    with pytest.raises(SimulatedCrash, match="constraint 11"):
        driver.descriptor(text, None)  # type: ignore[arg-type]
    driver.descriptor(text, {})


def matmul(flag: str) -> bytes:
    kinds = {"a": tensor((1, 1, 32, 32)), "b": tensor((1, 1, 32, 32))}
    call = f"matmul(transpose_x = no, transpose_y = {flag}, x = a, y = b)"
    return program(kinds, say((1, 1, 32, 32), "y", call), "y")


def test_12_transpose_flags_in_place() -> None:
    a, b = draw(32, 32), draw(32, 32, seed=2)
    naive, named = matmul("bool(true)"), matmul("yes")
    wanted = a.astype(np.float64) @ b.T.astype(np.float64)
    for name in (STRICT, "m1", "m4-macos27"):
        refused(name, naive, INVALID)
        assert breaks(12, name, naive)
        got = run(name, named, {"a": a, "b": b})["y"]
        assert np.allclose(got, wanted, rtol=2e-3, atol=1e-2)
    assert np.allclose(run("permissive", naive, {"a": a, "b": b})["y"], wanted, atol=0.02)


def test_13_a_bias() -> None:
    w, x, bias = draw(16, 16), draw(*S16, seed=2), np.arange(16)
    said = f"conv({HOW}, bias = B, weight = W, x = x)"
    kind, listed = tensor((16,)), ", ".join(map(str, bias))
    const = f'{kind} B = const()[name = string("B"), val = {kind}([{listed}])];\n'
    text = program(X, weight((16, 16, 1, 1)) + const + say(S16, "y", said), "y")
    for name in (STRICT, "m1", "m4-macos27"):
        refused(name, text, INVALID, {W: blob(w)})
        assert breaks(13, name, text)
    got = run("permissive", text, {"x": x}, {W: blob(w)})["y"]
    assert np.allclose(got, product(w, x) + bias.reshape(1, 16, 1, 1), atol=0.03)


def test_14_an_output_that_nothing_computes() -> None:
    """A pass took the identity away, and the output names what was before it."""
    text = program(X, say(S16, "y", "relu(x = x)"), "y", "x")
    for name in (STRICT, "m1", "m4-macos27"):
        refused(name, text, INVALID)
        assert breaks(14, name, text)
    x = draw(*S16)
    assert np.array_equal(run("permissive", text, {"x": x})["x"], x)
    for name in ALL:  # a name that is nowhere is wrong everywhere
        refused(name, program(X, say(S16, "y", "relu(x = x)"), "gone"), INVALID)


@pytest.mark.parametrize("name", ALL)
def test_15_restarts_cost(name: str) -> None:
    """A restart takes longer than a compile: what is cached by identifier takes neither."""
    rates = profile.load(name).costs
    assert rates.restart_ms == 50.0
    assert rates.restart_ms > costs.compiling(rates, 1e6) > rates.load_ms


def test_16_32000_channels() -> None:
    def of_channels(n: int) -> bytes:
        y = say((1, n, 1, 16), "y", f"conv({HOW}, weight = W, x = x)")
        return program({"x": tensor((1, 1, 1, 16))}, weight((n, 1, 1, 1)) + y, "y")

    w, x = draw(32000), draw(16)
    for name in (STRICT, "m1", "m4-macos27"):
        refused(name, of_channels(32000), COMPILE, {W: blob(w)})
        assert breaks(16, name, of_channels(32000))
        assert not breaks(16, name, of_channels(16384))
    got = run("permissive", of_channels(32000), {"x": x}, {W: blob(w)})["y"]
    assert np.allclose(got[0, :, 0], np.outer(w, x).astype(np.float16))


def test_17_matmul_takes_three_times_as_long() -> None:
    n = 2048
    kinds = {"x": tensor((1, n, 1, n))}
    conv = weight((n, n, 1, 1)) + say((1, n, 1, n), "y", f"conv({HOW}, weight = W, x = x)")
    product = weight((1, 1, n, n)) + say(
        (1, 1, n, n), "y", "matmul(transpose_x = no, transpose_y = no, x = W, y = r)"
    )
    turned = ints("sh", 1, 1, n, n) + say((1, 1, n, n), "r", "reshape(shape = sh, x = x)")
    texts = program(kinds, conv, "y"), program(kinds, turned + product, "y")
    a, b = (costs.estimate(parse(text), profile.load()) for text in texts)
    assert a.flops == b.flops == 2.0 * n**3
    assert 2.8 < b.compute_ms / a.compute_ms < 3.2
    assert breaks(17, STRICT, texts[1])
    assert not breaks(17, STRICT, texts[0])


def two_inputs(first: str, second: str) -> bytes:
    kinds = {first: tensor(S16), second: tensor(S16)}
    return program(kinds, say(S16, "y", f"sub(x = {first}, y = {second})"), "y")


def test_18_inputs_of_two_sizes() -> None:
    text, sizes = two_inputs("a", "b"), {"a": LEAST, "b": 2 * LEAST}
    for name in (STRICT, "m1", "m4-macos27"):
        inference_fails(name, text, sizes)
        assert breaks(18, name, text, inputs=list(sizes.values()))
    run("permissive", text, {"a": draw(*S16), "b": draw(*S16)}, sizes=sizes)


def test_19_inputs_in_another_order() -> None:
    """b - a is computed as a - b."""
    text, b, a = two_inputs("b", "a"), draw(*S16, seed=1), draw(*S16, seed=2)
    for name in (STRICT, "m1", "m4-macos27"):
        assert np.array_equal(run(name, text, {"b": b, "a": a})["y"], a - b)
        assert breaks(19, name, text)
    assert np.array_equal(run("permissive", text, {"b": b, "a": a})["y"], b - a)


def test_20_rows_with_a_stride() -> None:
    """An adapter of rank 4 that is written with the stride of a surface of 64: read packed, all
    but its first row are other values. Where rows kept their stride it would be right."""
    rank, stride, rows = 4, 64, 64
    kinds = {"a": tensor((1, rows, 1, rank))}
    text = program(kinds, say((1, rows, 1, rank), "y", "relu(x = a)"), "y")
    a = np.abs(draw(rows, rank)) + 1
    padded = np.zeros((rows, stride), np.float16)
    padded[:, :rank] = a
    sizes = {"a": padded.nbytes, "y": padded.nbytes}
    free = {"min_surface": 0, "spatial_multiple": 1}
    for name in ALL:
        got = run(of(name, **free), text, {"a": padded}, sizes=sizes)["y"].reshape(rows, rank)
        assert np.array_equal(got[0], a[0])
        assert np.count_nonzero(got) == rank * rank  # of 64 rows every sixteenth is there
        assert np.array_equal(run(of(name, **free), text, {"a": a})["y"].reshape(rows, rank), a)
    loose = of(STRICT, packed=False, **free)
    driver = Simulator(loose)
    model = driver.model(driver.descriptor(text, {}))
    model.compile()
    model.load()
    surfaces = driver.surface(padded.nbytes), driver.surface(padded.nbytes)
    with surfaces[0].lock() as memory:
        memory[:] = padded.reshape(-1).view(np.uint8)
    model.evaluate(Request([surfaces[0]], [surfaces[1]]))
    with surfaces[1].lock(read_only=True) as memory:
        assert np.array_equal(memory.view(np.float16).reshape(rows, stride)[:, :rank], a)
    model.release()
    assert breaks(20, STRICT, text, inputs=[256], outputs=[LEAST])


def test_what_keeps_all_rules_breaks_none() -> None:
    file = {W: blob(draw(16, 16))}
    text = program(X, CONV_W, "y")
    sizes = {"inputs": [LEAST], "outputs": [LEAST]}
    found = {n: breaks(n, STRICT, text, weights=file, **sizes) for n in CONSTRAINTS}
    assert not any(found.values()), found
    assert CONV in text.decode()

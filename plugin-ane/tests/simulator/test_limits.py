"""What others report beside the 20 constraints: each broken, and kept by a hair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ane_rig import HOW, LEAST, STRICT, W, blob, ints, of, program, run, say, tensor, weight
from umbel_ane import profile
from umbel_ane.drivers import AneError, Request
from umbel_ane.drivers.simulator import SimulatedCrash, Simulator
from umbel_ane.mil.blob import write_blob
from umbel_ane.profile import Profile

S16 = (1, 16, 1, 16)
X = {"x": tensor(S16)}
RELU = program(X, say(S16, "y", "relu(x = x)"), "y")


def draw(*shape: int, seed: int = 1) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).standard_normal(shape).astype(np.float16)
    return values


def error(
    rules: Profile, text: bytes, weights: dict[str, bytes] | None = None, **given: Any
) -> str:
    with pytest.raises(AneError) as caught:
        run(rules, text, given or {"x": draw(*S16)}, weights)
    return f"{caught.value.code:#x} {caught.value.text}"


def many_weights(files: int, together: bool = False, scalar: bool = False) -> tuple[bytes, Any]:
    """A sum of x times `files` weights, in files of their own or in one."""
    body, last = "", "x"
    arrays = [draw(16, seed=i) for i in range(files)]
    whole, offsets = write_blob([a.reshape(-1) for a in arrays])
    for i in range(files):
        path = W if together else f"@model_path/{i}.bin"
        body += weight((1, 16, 1, 1), f"w{i}", offsets[i] if together else 64, path)
        body += say(S16, f"y{i}", f"add(x = {last}, y = w{i})")
        last = f"y{i}"
    number = 'fp16 two = const()[name = string("two"), val = fp16(2)];\n'
    if scalar:
        body += number + say(S16, "z", f"mul(x = {last}, y = two)")
    files_of = {f"@model_path/{i}.bin": blob(a) for i, a in enumerate(arrays)}
    text = program(X, body, "z" if scalar else last)
    return text, {W: whole} if together else files_of


def test_16_weight_files() -> None:
    x = draw(*S16)
    run(STRICT, *_with(x, many_weights(16)))
    assert "InvalidMILProgram" in error(of(STRICT), *many_weights(17))
    run(STRICT, *_with(x, many_weights(128, together=True)))
    run("permissive", *_with(x, many_weights(17)))


def test_a_scalar_takes_one_of_them() -> None:
    x = draw(*S16)
    run(STRICT, *_with(x, many_weights(15, scalar=True)))
    assert "InvalidMILProgram" in error(of(STRICT), *many_weights(16, scalar=True))
    run("m1", *_with(x, many_weights(16, scalar=True)))


def test_an_m1_takes_one_weight_a_file() -> None:
    assert "ANECCompile" in error(of("m1"), *many_weights(2, together=True))
    run("m1", *_with(draw(*S16), many_weights(2)))


def _with(x: np.ndarray, made: tuple[bytes, Any]) -> tuple[bytes, Any, Any]:
    return made[0], {"x": x}, made[1]


def test_a_file_that_is_not_there() -> None:
    text, files = many_weights(2)
    del files["@model_path/1.bin"]
    assert "InvalidMILProgram" in error(of(STRICT), text, files)


def test_a_path_that_leads_outside() -> None:
    driver = Simulator(profile.load())
    for path in ("@model_path/../x.bin", "@model_path//etc/x", "x.bin"):
        with pytest.raises(AneError, match="folder"):
            driver.model(driver.descriptor(RELU, {path: b""}))


def test_an_m1_takes_no_fp32() -> None:
    body = 'string h = const()[name = string("h"), val = string("fp16")];\n'
    body += say(S16, "y", "cast(dtype = h, x = x)")
    text = program({"x": tensor(S16, "fp32")}, body, "y")
    x = draw(*S16)
    assert "ANECCompile" in error(of("m1"), text)
    assert np.array_equal(run(STRICT, text, {"x": x})["y"], x)


def test_long_axes() -> None:
    kinds = {"x": tensor((1, 1, 1, 16400))}
    text = program(kinds, say((1, 1, 1, 16400), "y", "relu(x = x)"), "y")
    assert "ANECCompile" in error(of(STRICT), text, x=draw(16400))
    run("m4-macos27", text, {"x": draw(16400)})


def test_multiples_of_the_last_axis() -> None:
    text = program({"x": tensor((1, 16, 1, 24))}, say((1, 16, 1, 24), "y", "relu(x = x)"), "y")
    assert "ANECCompile" in error(of("m1"), text, x=draw(16, 24))
    assert "ANECCompile" in error(of(STRICT), text, x=draw(16, 24))
    run("permissive", text, {"x": draw(16, 24)})


def test_a_summed_axis_that_gives_zeros() -> None:
    kinds = {"a": tensor((1, 1, 16, 48)), "b": tensor((1, 1, 48, 16))}
    call = "matmul(transpose_x = no, transpose_y = no, x = a, y = b)"
    text = program(kinds, say((1, 1, 16, 16), "y", call), "y")
    given = {"a": draw(16, 48), "b": draw(48, 16)}
    assert not run("m1", text, given)["y"].any()
    wanted = given["a"].astype(float) @ given["b"].astype(float)
    assert np.allclose(run(STRICT, text, given)["y"], wanted, atol=0.02)


def test_one_input() -> None:
    text = program(
        {"a": tensor(S16), "b": tensor(S16)}, say(S16, "y", "add(x = a, y = b)"), "y"
    )
    given = {"a": draw(*S16), "b": draw(*S16)}
    assert "0x1d" in error(of("maderix"), text, **given)
    run(STRICT, text, given)


def test_too_many_bytes_of_weights() -> None:
    text, files = many_weights(3)
    assert "program load failure" in error(of(STRICT, max_weight_bytes=95), text, files)
    run(of(STRICT, max_weight_bytes=96), *_with(draw(*S16), (text, files)))


def test_operations_of_a_program() -> None:
    text, files = many_weights(3)
    assert "ANECCompile" in error(of(STRICT, max_program_ops=2), text, files)


def test_refused_and_unknown_operations() -> None:
    number = 'fp16 e = const()[name = string("e"), val = fp16(0)];\n'
    text = program(X, number + say(S16, "y", "rsqrt(epsilon = e, x = x)"), "y")
    bare = program(X, say(S16, "y", "rsqrt(x = x)"), "y")
    assert "ANECCompile" in error(of(STRICT), text)
    assert np.allclose(run("permissive", text, {"x": np.full(S16, 4)})["y"], 0.5)
    assert "ANECCompile" in error(of("permissive"), bare)
    gather = program(X, say(S16, "y", "gather(axis = gr, indices = x, x = x)"), "y")
    assert "InvalidMILProgram" in error(of("permissive"), gather)


def test_tile_poisons_the_process() -> None:
    tiled = program(
        X, ints("r", 1, 2, 1, 1) + say((1, 32, 1, 16), "y", "tile(reps = r, x = x)"), "y"
    )
    x = draw(*S16)
    run("permissive", tiled, {"x": x})
    run("permissive", RELU, {"x": x})
    assert np.array_equal(run(STRICT, tiled, {"x": x})["y"], np.tile(x, (1, 2, 1, 1)))
    assert "0x1d" in error(of(STRICT), RELU)


def test_a_convolution_by_an_input() -> None:
    kinds = {"w": tensor((16, 16, 1, 1)), "x": tensor(S16)}
    text = program(kinds, say(S16, "y", f"conv({HOW}, weight = w, x = x)"), "y")
    given = {"w": draw(16, 16), "x": draw(*S16)}
    assert not run(of(STRICT, spatial_multiple=1), text, given)["y"].any()
    assert run("permissive", text, given)["y"].any()


def test_palettes() -> None:
    """16 entries for each of two groups of output channels."""
    lut = draw(2, 16).astype(np.float16)
    indices = np.random.default_rng(3).integers(0, 16, (16, 16))
    file, (at, where) = write_blob([(indices.reshape(-1), "uint4"), lut.reshape(-1)])
    ikind, lkind = tensor((16, 16, 1, 1), "uint4"), tensor((2, 1, 1, 1, 16, 1))
    call = f"""constexpr_lut_to_dense(
        indices = {ikind}(BLOBFILE(path = string("{W}"), offset = uint64({at}))),
        lut = {lkind}(BLOBFILE(path = string("{W}"), offset = uint64({where}))))"""
    body = say((16, 16, 1, 1), "W", call) + say(S16, "y", f"conv({HOW}, weight = W, x = x)")
    text, x = program(X, body, "y"), draw(*S16)
    dense = np.concatenate([lut[0][indices[:8]], lut[1][indices[8:]]]).astype(float)
    wanted = (dense @ x.reshape(16, 16).astype(float)).reshape(S16)
    for name in ("m4-macos27", "permissive"):
        assert np.allclose(run(name, text, {"x": x}, {W: file})["y"], wanted, atol=0.02)
    assert "ANECCompile" in error(of(STRICT), text, {W: file})


# numbers


def test_matmul_saturates() -> None:
    kinds = {"a": tensor((1, 1, 16, 32)), "b": tensor((1, 1, 32, 16))}
    call = "matmul(transpose_x = no, transpose_y = no, x = a, y = b)"
    text = program(kinds, say((1, 1, 16, 16), "y", call), "y")
    given = {"a": np.full((16, 32), -32.0), "b": np.full((32, 16), 32.0)}  # -32768
    assert np.all(run(STRICT, text, given)["y"] == -np.inf)
    assert np.all(run("permissive", text, given)["y"] == -32768)
    beyond = {"a": np.full((16, 32), 64.0), "b": np.full((32, 16), 64.0)}
    assert np.all(run("permissive", text, beyond)["y"] == np.inf)  # float16's own range


def test_slices_saturate() -> None:
    body = ints("b", 0, 0, 0, 16) + ints("s", 1, 16, 1, 16)
    body += say(S16, "y", "slice_by_size(begin = b, size = s, x = x)")
    text = program({"x": tensor((1, 16, 1, 32))}, body, "y")
    x = np.full((16, 32), -5000.0)
    assert np.all(run("m1", text, {"x": x})["y"] == -4094)
    assert np.all(run(STRICT, text, {"x": x})["y"] == -5000)


def test_long_sums_are_rounded_in_between() -> None:
    """1024.4375 and 1025.4375: exactly 2049.875, near 2050; with either part rounded first
    2049, halfway between two numbers of float16, and 2048."""
    body = ints("ax", 3)
    body += say((1, 1, 1, 1), "s", "reduce_sum(axes = ax, keep_dims = yes, x = x)")
    body += say((1, 1, 1, 16), "y", "add(x = s, y = z)")
    kinds = {"x": tensor((1, 1, 1, 1024)), "z": tensor((1, 1, 1, 16))}
    text, x = program(kinds, body, "y"), np.full(1024, 2.0)
    x[0], x[512] = 2.4375, 3.4375
    given = {"x": x, "z": np.zeros(16)}
    assert np.all(run(STRICT, text, given)["y"] == 2050)
    assert np.all(run("m1", text, given)["y"] == 2048)


def test_nan_is_dropped() -> None:
    x = draw(*S16)
    x[0, 0] = np.nan
    assert np.isnan(run(STRICT, RELU, {"x": x})["y"][0, 0]).all()
    for name in ("m1", "m4-macos27"):
        assert not run(name, RELU, {"x": x})["y"][0, 0].any()


# surfaces


def test_a_surface_that_is_gone_or_too_small() -> None:
    driver = Simulator(profile.load("permissive"))
    model = driver.model(driver.descriptor(RELU, {}))
    with pytest.raises(AneError, match="not loaded"):
        model.evaluate(Request([], []))
    model.compile()
    model.load()
    small, right = driver.surface(510), driver.surface(512)
    with pytest.raises(AneError) as caught:
        model.evaluate(Request([small], [right]))
    assert caught.value.code == 0x12
    with pytest.raises(AneError) as caught:
        model.evaluate(Request([right, right], [right]))
    assert caught.value.code == 0x1D
    model.evaluate(Request([right], [right]))
    right.release()
    with pytest.raises(SimulatedCrash):
        model.evaluate(Request([right], [right]))
    model.release()


def test_a_locked_surface_cannot_be_written_read_only() -> None:
    surface = Simulator(profile.load()).surface(LEAST)
    with surface.lock(read_only=True) as memory, pytest.raises(ValueError, match="read-only"):
        memory[0] = 1
    with surface.lock() as memory:
        memory[0] = 1

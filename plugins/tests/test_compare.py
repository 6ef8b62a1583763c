"""Limits and the rules for what is not finite."""

import math

import attrs
import numpy as np
import pytest
from umbel.gguf.types import F16, F32
from umbel.graph import Builder, Graph
from umbel.ops import OPS
from umbel_kit import device
from umbel_kit.cases import CASES, arrays, graph
from umbel_kit.compare import LARGEST, edge_fault, fault, limit, nmse
from umbel_kit.planned import fault_of_decomposition
from umbel_kit.reference import evaluate

ONE = np.array([1.0, -2.0, 4.0], np.float32)


def changed(**at: float) -> np.ndarray:
    values = ONE.copy()
    for place, value in at.items():
        values[int(place[1:])] = value
    return values


@pytest.mark.parametrize(
    ("op", "dtype", "stored", "most"),
    [
        ("add", "f32", "", 1e-7),
        ("add", "f16", "", 1e-6),
        ("rms_norm", "f16", "", 4e-6),
        ("add", "bf16", "", 6.4e-5),
        ("soft_max", "f32", "", 1e-6),
        ("mul_mat", "f32", "f32", 1e-7),
        ("mul_mat", "f32", "f16", 5e-7),
        ("mul_mat", "f32", "q4_0", 5e-4),
        ("mul_mat", "f32", "", 5e-4),
        ("mul_mat", "f16", "f16", 1e-5),
        ("mul_mat", "f16", "q4_0", 5e-4),
        ("kv_attention", "f32", "f32", 1e-6),
        ("kv_attention", "f32", "q8_0", 5e-4),
        ("state", "f32", "f32", 1e-7),
        ("state", "f32", "q8_0", 1e-5),
        ("an operation of somebody's", "f32", "", 1e-7),
        *((op, dtype, "", 0.0) for op in ("concat", "cont", "neg") for dtype in LARGEST),
    ],
)
def test_limits(op, dtype, stored, most):
    """Per operation, the dtype that is computed in, and that of the weight."""
    assert limit(op, dtype, stored) == pytest.approx(most, abs=0)


def test_measure():
    """The squared error relative to the size of the reference; nothing to nothing is right."""
    assert nmse(ONE, ONE) == 0
    assert nmse(ONE, ONE * np.float32(1.5)) == pytest.approx(0.25)
    assert nmse(np.zeros(3), np.zeros(3)) == 0
    assert nmse(np.zeros(3), ONE) == math.inf
    assert nmse(np.zeros((0, 4)), np.zeros((0, 4))) == 0
    assert nmse(ONE, changed(_1=np.nan)) == math.inf


@pytest.mark.parametrize(
    ("expected", "actual", "good"),
    [
        (ONE, ONE, True),
        (ONE, changed(_1=np.nan), False),
        (ONE, changed(_1=-np.inf), False),
        (changed(_1=np.inf), changed(_1=np.inf), True),
        (changed(_1=np.inf), changed(_1=LARGEST["f32"]), True),
        (changed(_1=np.inf), changed(_1=-np.inf), False),
        (changed(_1=np.inf), changed(_1=np.nan), False),
        (changed(_1=np.inf), changed(_1=1e30), False),
        (changed(_1=-np.inf), changed(_1=-np.inf), True),
        (changed(_1=np.nan), changed(_1=np.nan), True),
        (changed(_1=np.nan), changed(_1=7.0), False),
        (changed(_1=np.nan), changed(_1=np.inf), True),
        (changed(_1=np.nan), changed(_1=np.nan, _2=np.nan), False),
        (changed(_1=np.nan), changed(_1=0.0, _2=5.0), False),
        (changed(_1=np.inf), changed(_1=np.inf, _2=5.0), False),
    ],
)
def test_not_finite(expected, actual, good):
    """Infinities keep their sign, NaN stays where it is; the rest is as near as ever."""
    assert (fault("add", "f32", expected, actual) is None) is good
    assert (edge_fault("f32", expected, actual) is None) is good


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_arithmetic_may_have_no_nan(dtype):
    """Any answer will do in the place of one, and in no other."""
    lost = changed(_1=np.nan)
    assert fault("add", dtype, lost, changed(_1=7.0)) is None
    assert edge_fault(dtype, lost, changed(_1=7.0)) is None
    assert fault("add", dtype, lost, changed(_1=7.0, _2=5.0)) is not None
    assert fault("add", dtype, ONE, lost) is not None


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_moves(bad):
    """What only moves values changes none of them, whatever they are."""
    expected = changed(_1=bad)
    assert fault("concat", "f16", expected, expected.copy()) is None
    for other in {1.0, np.inf, -np.inf, np.nan, LARGEST["f32"]} - {bad}:
        if not (math.isnan(bad) and math.isnan(other)):
            assert fault("concat", "f16", expected, changed(_1=other)) is not None
    least = np.nextafter(ONE, np.float32(9))
    assert fault("cont", "f16", ONE, least) is not None
    assert fault("add", "f16", ONE, least) is None


def test_what_is_said():
    """Where, what and what was expected."""
    told = fault("add", "f32", ONE.reshape(1, 3), changed(_2=np.nan).reshape(1, 3))
    assert told == "nan at [0, 2], expected 4.0"
    told = fault("add", "f32", ONE.reshape(3, 1), changed(_1=5.0).reshape(3, 1)) or ""
    assert told.startswith("NMSE ")
    assert told.endswith(
        f"at most 1e-07 is allowed; the largest difference is 5.0 at [1, 0], expected {ONE[1]}"
    )
    assert fault("add", "f32", ONE, ONE[:2]) == "shape [2], expected [3]"
    assert edge_fault("f32", ONE, ONE[:2]) == "shape [2], expected [3]"
    assert edge_fault("f16", ONE, changed(_0=1.5)) == "1.5 at [0], expected 1.0"


def test_edges():
    """Beyond the range: infinite or the largest; below the normal numbers: zero is as good."""
    expected = np.array([1e9, -1e9, 1e-6, 100.0], np.float32)
    good = [[np.inf, -np.inf, 0, 100], [65504, -65504, 1e-6, 100.2], [np.inf, -65504, 0, 100]]
    bad = [[np.inf, np.inf, 0, 100], [65000, -np.inf, 0, 100], [np.inf, -np.inf, 0, 102]]
    bad += [[np.nan, -np.inf, 0, 100], [np.inf, -np.inf, 0.01, 100]]
    assert [edge_fault("f16", expected, np.array(a, np.float32)) for a in good] == [None] * 3
    assert None not in [edge_fault("f16", expected, np.array(a, np.float32)) for a in bad]


@pytest.mark.parametrize("op", ["norm", "softplus", "geglu_erf", "mul_mat_id", "ssm_scan"])
def test_float16_is_within_the_limits(host, op):
    """The host, storing every value as float16: the operation, and its decomposition."""
    info = attrs.evolve(host.info, compute_dtype="f16")
    target = attrs.evolve(host, info=info)
    for case in (c for c in CASES if c.op == op):
        call = device.prepare(case, target, OPS)
        assert device.fault(call, "f16", *device.Subject(target).run(call)) == "", case
        if not case.edges:
            assert fault_of_decomposition(case, target, host, OPS) == "", case


@pytest.mark.parametrize(("made_for", "good"), [(F16, True), (F32, False)], ids=str)
def test_a_decomposition_that_overflows(made_for, good):
    """rms_norm squares what float16 cannot hold the square of: the limit tells."""
    (case,) = (c for c in CASES if c.op == "rms_norm" and c.note == "large")
    (node,) = graph(case, OPS, lambda arg: F32).outputs
    feeds = dict(zip(node.inputs, arrays(case, F16), strict=True))
    build = Builder(OPS)
    parts = build.graph([node.op.decompose(build, node, made_for)])
    (expected,) = evaluate(Graph((node,), (node,)), feeds)
    (actual,) = evaluate(parts, feeds, dtype=F16)
    assert (fault("rms_norm", "f16", expected, actual) is None) is good


@pytest.mark.parametrize("op", ["cont", "concat", "add"])
def test_a_device_may_say_that_it_drops_nan(op):
    """Then a number may stand where a NaN was, and nothing else may change."""
    lost = changed(_1=math.nan)
    assert (fault(op, "f16", lost, changed(_1=0.0)) is None) == (op == "add")
    assert fault(op, "f16", lost, changed(_1=0.0), drops_nan=True) is None
    assert fault(op, "f16", lost, changed(_0=7.0, _1=0.0), drops_nan=True)
    assert fault(op, "f16", ONE, changed(_1=math.nan), drops_nan=True)

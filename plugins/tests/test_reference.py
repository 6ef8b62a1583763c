"""The interpreter that tests and the conformance kit trust."""

import numpy as np
import pytest
from umbel.errors import GraphError
from umbel.gguf.types import F16, F32
from umbel.graph import Builder, Role
from umbel.ops import OPS
from umbel_kit.reference import evaluate


def test_missing_feed():
    """A leaf without values is named."""
    build = Builder(OPS)
    x = build.leaf(Role.INPUT, "tokens", (2,), F32)
    with pytest.raises(GraphError, match="input 'tokens' is not fed"):
        evaluate(build.graph([build.neg(x)]), {})


def test_outputs_in_order():
    """In the order asked for; a leaf may be an output; deep graphs do not recurse."""
    build = Builder(OPS)
    x = build.leaf(Role.INPUT, "x", (2,), F32)
    y = x
    for _ in range(3000):
        y = build.scale(y, s=1.0, b=1.0)
    values = np.zeros(2, np.float32)
    for wanted, expected in (([y, x], [[3000, 3000], [0, 0]]), ([x], [[0, 0]])):
        assert expected == [a.tolist() for a in evaluate(build.graph(wanted), {x: values})]


def test_rounding():
    """In f16 every value on the way is rounded, leaves and constants too; state is not."""
    build = Builder(OPS)
    x = build.leaf(Role.INPUT, "x", (1,), F32)
    state = build.leaf(Role.STATE, "state", (1,), F32)
    odd = np.array([2049.0], np.float32)
    feeds = {x: odd, state: odd}
    graph = build.graph([build.scale(x, s=1.0), build.add(x, build.const(odd)), state])
    assert [float(a[0]) for a in evaluate(graph, feeds)] == [2049.0, 4098.0, 2049.0]
    rounded = [float(a[0]) for a in evaluate(graph, feeds, dtype=F16)]
    assert rounded == [2048.0, 4096.0, 2049.0]


def test_f16_results_are_stored_as_f16():
    """A node of dtype f16 holds float16 values and is read as float32."""
    build = Builder(OPS)
    x = build.leaf(Role.INPUT, "x", (1,), F16)
    squared = build.sqr(x)
    total = build.sum_rows(build.cast(squared, dtype="f32"))
    view = build.reshape(squared, shape=(1, 1))
    half, seen, whole = evaluate(
        build.graph([squared, view, total]), {x: np.array([45.28], np.float16)}
    )
    assert (half.dtype, seen.dtype, whole.dtype) == (np.float16, np.float16, np.float32)
    assert float(np.float16(np.float32(np.float16(45.28)) ** 2)) == float(whole[0])


def test_what_is_changed_in_place():
    """A backend must hand out these inputs as they are stored."""
    assert {name: op.mutates for name, op in OPS.items() if op.mutates} == {
        "set_rows": (0,),
        "kv_attention": (3, 4),
    }


def test_operations_are_complete():
    """Each has a reference and a rule under its own name; what changes memory says so."""
    assert all(name == op.name for name, op in OPS.items())
    composite = {name for name, op in OPS.items() if op.decompose}
    assert composite == {
        *("silu", "gelu", "gelu_erf", "gelu_quick", "softplus", "mul_mat_id"),
        *("rms_norm", "norm", "rope", "flash_attn_ext", "kv_attention"),
        *("swiglu", "geglu", "geglu_erf", "geglu_quick", "reglu", "ssm_conv", "ssm_scan"),
    }
    assert {n for n, op in OPS.items() if op.view} == {"reshape", "permute", "view"}
    assert not any(op.in_place and (op.view or op.writes) for op in OPS.values())

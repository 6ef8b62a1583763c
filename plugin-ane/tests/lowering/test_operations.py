"""Every operation as the kit's suite meets it, against the core's reference."""

from __future__ import annotations

import numpy as np
import pytest
from ane_ports import EXACT, PROFILE, STRANGE, computed, lowered_graph, truth
from umbel.gguf.types import BY_NAME, F16, I32, dequantise
from umbel.graph import Graph, Role, Tensor
from umbel.ops import OPS
from umbel_ane.compiler.lowering import unsupported
from umbel_kit.cases import CASES
from umbel_kit.compare import edge_fault, excess, fault
from umbel_kit.conformance.inputs import Arg, Case, arrays, graph, laid_out

BY = dict(OPS)


CASES_HERE = [c for c in CASES if c.op != "kv_attention"]  # never as it is
# constants of these are no float16 numbers, and so rounded in every mode
ROUNDED = ("div", "gelu", "gelu_quick", "geglu", "geglu_quick", "rms_norm", "norm", "soft_max")


def dtype_of(arg: Arg) -> object:
    if arg.dtype == "i32":
        return I32
    if arg.role is Role.STATE:
        return BY_NAME[arg.dtype]
    return F16


def drawn(case: Case, made: Graph) -> dict[Tensor, np.ndarray]:
    """The arrays of the leaves, as float16 holds them."""
    given = {}
    for i, (arg, array) in enumerate(zip(case.args, arrays(case, F16), strict=True)):
        stored = arg.stored_in(F16)
        plain = laid_out(arg, array)
        if stored is not I32:
            values = dequantise(plain, stored).astype(np.float16).astype(np.float32)
            plain = values.reshape(arg.leaf_shape)
        leaf = next(
            t.storage for n in made.nodes for t in n.inputs if t.storage.name == f"in{i}"
        )
        given[leaf] = plain
    return given


@pytest.mark.parametrize("case", CASES_HERE, ids=str)
def test_operation(case: Case) -> None:
    """What is claimed is right: in float32 exactly, in float16 as the suite wants."""
    made = graph(case, BY, dtype_of, F16 if case.op != "top_k" else None)
    node = made.nodes[-1]
    reason = unsupported(node, PROFILE)
    if reason is not None:
        assert len(reason) > 10
        pytest.skip(reason)
    given = drawn(case, made)
    expected = truth(made, given)[node]
    for profile in (PROFILE, EXACT, STRANGE):
        lowered = lowered_graph(made, given, profile)
        last = [n.shape[3] for n in lowered.graph.inputs()]
        last += [n.shape[3] for n in lowered.graph.outputs.values()]
        assert not any(n % profile.spatial_multiple for n in last)
        rounded = computed(lowered, given, "fp16")[node].astype(np.float32)
        if case.edges:
            assert edge_fault("f16", expected, rounded) is None
            continue
        assert fault(case.op, "f16", expected, rounded, "f16") is None
        exact = computed(lowered, given, "fp32")[node]
        rounded_too = case.op in ROUNDED or case.attrs.get("logit_softcap")
        limit = 2e-7 if rounded_too else 1e-10
        assert excess(expected, exact, limit) is None

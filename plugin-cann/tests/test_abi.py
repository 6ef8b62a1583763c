"""One ABI in three places: what the facts say, the plugin calls, and the simulator has."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # what tests share stands beside them

import abi
import pytest
from umbel_cann import runtime, views
from umbel_cann.acl import codes
from umbel_cann.acl.prototypes import FIRST, FUNCTIONS, KINDS, OPERATORS, RESULTS, SECOND, names


def test_the_plugin_calls_what_there_is() -> None:
    known = abi.functions()
    for name, letters in FUNCTIONS.items():
        assert (RESULTS.get(name, "i"), letters) == known[name], name
    for operator, letters in OPERATORS.items():
        assert ("i", letters + FIRST) == known[f"aclnn{operator}GetWorkspaceSize"], operator
        assert ("i", SECOND) == known[f"aclnn{operator}"], operator


def test_every_letter_stands_for_a_type_of_its_size() -> None:
    import ctypes

    sizes = {"l": 8, "U": 8, "z": 8, "d": 8, "i": 4, "u": 4, "f": 4, "h": 2, "c": 1, "b": 1}
    assert {k: ctypes.sizeof(v) for k, v in KINDS.items() if k in sizes} == sizes
    assert {ctypes.sizeof(v) for k, v in KINDS.items() if k not in sizes} == {8}


def test_error_codes() -> None:
    assert {int(k): v for k, v in abi.ABI["errors"].items()} == dict(codes.NAMES)
    assert set(codes.ADVICE) <= set(codes.NAMES)


def test_numbers_of_the_plugin() -> None:
    enums = abi.ABI["enums"]
    types, copies = enums["aclDataType"], enums["aclrtMemcpyKind"]
    of = {"f32": "ACL_FLOAT", "f16": "ACL_FLOAT16", "i32": "ACL_INT32"}
    assert views.TYPES == {ours: types[theirs] for ours, theirs in of.items()}
    assert views.ND == enums["aclFormat"]["ACL_FORMAT_ND"]
    kinds = ("HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE")
    ours = runtime.TO_DEVICE, runtime.TO_HOST, runtime.WITHIN
    assert ours == tuple(copies[f"ACL_MEMCPY_{kind}"] for kind in kinds)
    assert enums["aclrtMemMallocPolicy"]["ACL_MEM_MALLOC_HUGE_FIRST"] == runtime.HUGE_FIRST
    memory = enums["aclrtMemAttr"]
    assert (runtime.DDR, runtime.HBM) == (memory["ACL_DDR_MEM"], memory["ACL_HBM_MEM"])


def test_letters_of_c() -> None:
    text = """
    ACL_API aclnnStatus aclnnAddGetWorkspaceSize(const aclTensor *self, const aclTensor *other,
        const aclScalar *alpha, aclTensor *out, uint64_t *size, aclOpExecutor **executor);
    ACL_API const char *aclrtGetSocName(void); /* ACL_API int aclNot(int x); */
    typedef enum { A, B, C = 7, D } some; enum named { E = -1, F };
    """
    known = {"aclnnAddGetWorkspaceSize": ("i", "TTSTpp"), "aclrtGetSocName": ("s", "")}
    assert abi.prototypes(text) == known
    assert abi.constants(text) == {"A": 0, "B": 1, "C": 7, "D": 8, "E": -1, "F": 0}


@pytest.mark.parametrize("path", sorted(abi.NATIVE.glob("*.c")), ids=lambda path: path.name)
def test_the_simulator_has_these_prototypes(path: Path) -> None:
    """In every source: what it defines, and what it declares. Helpers of its own are not
    exported."""
    known, found = abi.functions(), abi.prototypes(abi.preprocessed(path))
    assert {k: found[k] for k in found if k in known} == {
        k: known[k] for k in found if k in known
    }
    if path.name.startswith(("op_", "nnop_")):
        assert set(found) <= set(known)


def test_the_simulator_has_what_the_plugin_calls() -> None:
    text = "\n".join(abi.preprocessed(path) for path in abi.NATIVE.glob("*.c"))
    found = set(abi.prototypes(text))
    assert set(FUNCTIONS) <= found
    assert {name for o in OPERATORS for name in names(o)} <= found


def test_the_simulator_has_these_numbers() -> None:
    told = abi.constants((abi.NATIVE / "acl.h").read_text())
    enums = {k: v for enum in abi.ABI["enums"].values() for k, v in enum.items()}
    known = {**enums, **abi.ABI["flags"]}
    both = known.keys() & told
    assert {k: told[k] for k in both} == {k: known[k] for k in both}
    assert len(told) > 100
    theirs = {v for k, v in told.items() if k.startswith(("ACL_ERROR", "ACLNN_"))}
    assert theirs <= {int(code) for code in abi.ABI["errors"]}

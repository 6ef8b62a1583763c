"""Cases that `umbel compare` keeps: what a file holds, and files that are none."""

import json

import numpy as np
from umbel.gguf.types import F16, F32, Q8_0
from umbel.graph import Role
from umbel.ops import OPS
from umbel_kit import recorded
from umbel_kit.device import as_stored, reference
from umbel_kit.recorded import Leaf, Recorded


def test_a_case_holds_everything(tmp_path):
    """Views, a shared leaf, weights and states as bytes, constants, tuples."""
    rng = np.random.default_rng(5)
    floats = rng.standard_normal((4, 64)).astype(np.float16)
    blocks = as_stored(rng.standard_normal((8, 64)), Q8_0)
    rows = np.array([3, 1], np.int32)
    leaves = [
        Leaf("x", Role.INPUT, F16, (4, 64), floats),
        Leaf("cache", Role.STATE, Q8_0, (8, 64), blocks),
        Leaf("rows", Role.CONST, recorded.BY_NAME["i32"], (2,), rows),
    ]
    half = [("view", {"axis": 0, "start": 1, "stop": 3})]
    inputs = [(1, []), (0, half), (2, [])]
    case = Recorded("set_rows", "write", {}, Q8_0, leaves, inputs, {"device": "here"})
    recorded.save(tmp_path / "case.npz", case)
    read = recorded.load(tmp_path / "case.npz", OPS)
    assert (read.op, read.name, read.how, read.dtype, read.story) == (
        *("set_rows", "write", {}, Q8_0),
        {"device": "here"},
    )
    for one, other in zip(leaves, read.leaves, strict=True):
        assert (one.name, one.role, one.dtype, one.shape) == (
            *(other.name, other.role, other.dtype),
            other.shape,
        )
        np.testing.assert_array_equal(one.array, other.array)
    call = read.ready(None, OPS)
    assert [t.dtype for t in call.node.inputs] == [Q8_0, F32, recorded.BY_NAME["i32"]]
    _, states = reference(call)
    (after,) = states.values()
    np.testing.assert_array_equal(after[[3, 1]], as_stored(floats[1:3], Q8_0))
    np.testing.assert_array_equal(after[[0, 2, 4, 5, 6, 7]], blocks[[0, 2, 4, 5, 6, 7]])


def changed(path, **header):
    """A copy of a case whose header says something else."""
    with np.load(path) as archive:
        arrays = dict(archive)
    told = json.loads(arrays["header"].tobytes()) | header
    arrays["header"] = np.frombuffer(json.dumps(told).encode(), np.uint8)
    np.savez(path.with_name("changed.npz"), **arrays)
    return path.with_name("changed.npz")


def test_files_that_are_no_case(umbel, model, odd, tmp_path, wrong):
    """Each is refused by what is wrong with it."""
    odd.spoil, case = wrong("swiglu"), tmp_path / "case.npz"
    assert umbel(model(), "--device", "odd", "--save", case).code == 1
    other, cut = tmp_path / "other.npz", tmp_path / "cut.npz"
    np.savez(other, header=np.frombuffer(b'{"format": "umbel sequence 1"}', np.uint8))
    cut.write_bytes(case.read_bytes()[:-100])
    for path in (other, cut, model()):
        done = umbel("--replay", path)
        assert (done.code, "this is no case" in done.err) == (2, True), path
    for header, text in (
        ({"format": "umbel case 2"}, "of another version\n"),
        ({"op": "fly"}, "there is no operation 'fly'"),
        ({"inputs": [[0, []], [7, []]]}, "the case is damaged"),
        ({"inputs": [[0, []], [1, [["reshape", {"shape": [3]}]]]]}, "the case is damaged"),
        ({"leaves": []}, "the case is damaged"),
        ({"dtype": "f7"}, "the case is damaged"),
        ({"attrs": {"colour": 1}}, "the case is damaged"),
    ):
        done = umbel("--replay", changed(case, **header))
        assert (done.code, text in done.err) == (2, True), (header, done.err)

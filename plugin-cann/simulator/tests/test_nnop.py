"""Rules 11 to 13: executors, workspaces, descriptors."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_int64, c_uint64, c_void_p
from signal import SIGABRT
from typing import Any

import numpy as np
from operators import DTYPES, Operators, longs, some
from simulated import Acl, simulated

SMALL = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def leaked(acl: Acl) -> dict[str, int]:
    counters = acl.report()["counters"]
    return {k: v for k, v in counters.items() if k.startswith("leaked") and v}


def asked(on: Operators, name: str, handle: int) -> list[int]:
    dims, count = ctypes.POINTER(c_int64)(), c_uint64()
    assert getattr(on.base, name)(c_void_p(handle), byref(dims), byref(count)) == 0
    values = dims[: count.value]
    ctypes.CDLL(None).free(dims)
    return values


def mul(on: Operators, data: Any = SMALL) -> tuple[Any, Any, Any]:
    """A call whose inputs are not views; its executor's size and number."""
    x, out = on.tensor(data), on.empty(data.shape, "f32")
    code, size, executor = on.first("Mul", x, x, out)
    assert code == 0
    return out, size, executor


def softmax(on: Operators) -> tuple[int, int]:
    """One that asks for a workspace."""
    code, size, executor = on.first("Softmax", on.tensor(SMALL), 1, on.empty((2, 3), "f32"))
    assert code == 0
    assert size > 0
    return size, executor


@simulated()
def test_a_tensor_tells_what_it_was_made_of(acl: Acl) -> None:
    on = Operators(acl)
    shape, strides = longs([2, 3]), longs([4, 1])
    create = on.base.aclCreateTensor
    storage, two, one = longs([9]), c_uint64(2), c_uint64(1)
    tensor = create(shape, two, 1, strides, c_int64(1), 2, storage, one, c_void_p(64))
    shape[0], strides[0], storage[0] = 7, 7, 7  # they were copied
    assert asked(on, "aclGetViewShape", tensor) == [2, 3]
    assert asked(on, "aclGetViewStrides", tensor) == [4, 1]
    assert asked(on, "aclGetStorageShape", tensor) == [9]
    offset, kind, form, at = c_int64(), c_int(), c_int(), c_void_p()
    assert on.base.aclGetViewOffset(c_void_p(tensor), byref(offset)) == 0
    assert on.base.aclGetDataType(c_void_p(tensor), byref(kind)) == 0
    assert on.base.aclGetFormat(c_void_p(tensor), byref(form)) == 0
    assert (offset.value, kind.value, form.value) == (1, 1, 2)
    assert on.base.aclSetRawTensorAddr(c_void_p(tensor), c_void_p(128)) == 0
    assert on.base.aclGetRawTensorAddr(c_void_p(tensor), byref(at)) == 0
    assert at.value == 128
    again = (longs([5]), one, 0, None, c_int64(0), 2, longs([5]), one, c_void_p(0))
    assert on.base.aclInitTensor(c_void_p(tensor), *again) == 0
    assert asked(on, "aclGetViewShape", tensor) == [5]
    assert asked(on, "aclGetViewStrides", tensor) == [1]


@simulated()
def test_a_tensor_of_nothing_is_none(acl: Acl) -> None:
    on = Operators(acl)
    create, one, nine = on.base.aclCreateTensor, c_uint64(1), c_uint64(9)
    dims, many = longs([5]), longs([1] * 9)
    assert create(None, one, 0, None, c_int64(0), 2, dims, one, None) is None
    assert create(dims, one, 0, None, c_int64(0), 2, None, one, None) is None
    assert create(many, nine, 0, None, c_int64(0), 2, dims, one, None) is None
    assert create(longs([-1]), one, 0, None, c_int64(0), 2, dims, one, None) is None
    assert on.base.aclCreateScalar(None, 0) is None
    assert on.base.aclCreateIntArray(None, one) is None
    assert on.base.aclGetViewShape(None, byref(c_void_p()), byref(c_uint64())) == 161001
    assert on.base.aclSetRawTensorAddr(None, None) == 161001


@simulated()
def test_what_is_destroyed_is_not_counted_as_leaked(acl: Acl) -> None:
    on = Operators(acl)
    t, list_of = on.tensor(SMALL), on.tensors(on.tensor(SMALL), on.tensor(SMALL))
    scalar, ints = on.scalar(1), on.ints(1, 2)
    count = c_uint64()
    assert on.base.aclGetIntArraySize(c_void_p(ints.handle), byref(count)) == 0
    assert count.value == 2
    assert leaked(acl) == {
        "leaked aclTensor": 3,
        "leaked aclTensorList": 1,
        "leaked aclScalar": 1,
        "leaked aclIntArray": 1,
    }
    for kind, handle in (("Tensor", t), ("TensorList", list_of), ("Scalar", scalar)):
        assert getattr(on.base, f"aclDestroy{kind}")(c_void_p(handle.handle)) == 0
    assert on.base.aclDestroyIntArray(c_void_p(ints.handle)) == 0
    for kind in ("Tensor", "TensorList", "Scalar", "ScalarList", "IntArray", "BoolArray"):
        assert getattr(on.base, f"aclDestroy{kind}")(None) == 0
    assert leaked(acl) == {}
    assert acl.counted("descriptors") == 6


@simulated(dies=SIGABRT)
def test_a_tensor_destroyed_twice_ends_the_process(acl: Acl) -> None:
    on = Operators(acl)
    handle = c_void_p(on.tensor(SMALL).handle)
    on.base.aclDestroyTensor(handle)
    on.base.aclDestroyTensor(handle)


@simulated(dies=SIGABRT)
def test_a_list_takes_its_members_along(acl: Acl) -> None:
    on = Operators(acl)
    member = on.tensor(SMALL)
    on.base.aclDestroyTensorList(c_void_p(on.tensors(member).handle))
    on.base.aclDestroyTensor(c_void_p(member.handle))


@simulated(dies=SIGABRT)
def test_a_pointer_to_something_else_ends_the_process(acl: Acl) -> None:
    on = Operators(acl)
    on.first("Abs", on.scalar(1), on.tensor(SMALL))


@simulated(dies=SIGABRT)
def test_a_destroyed_tensor_cannot_be_used(acl: Acl) -> None:
    on = Operators(acl)
    t = on.tensor(SMALL)
    on.base.aclDestroyTensor(c_void_p(t.handle))
    on.first("Abs", t, on.tensor(SMALL))


@simulated(dies=SIGABRT)
def test_a_one_shot_executor_used_twice_ends_the_process(acl: Acl) -> None:
    on = Operators(acl)
    _, size, executor = mul(on)
    assert on.second("Mul", size, executor) == 0
    on.second("Mul", size, executor)


@simulated(dies=SIGABRT)
def test_an_executor_is_for_its_own_operator(acl: Acl) -> None:
    on = Operators(acl)
    _, size, executor = mul(on)
    on.second("Abs", size, executor)


@simulated(dies=SIGABRT)
def test_a_repeatable_executor_ends_once(acl: Acl) -> None:
    on = Operators(acl)
    _, _, executor = mul(on)
    assert on.base.aclSetAclOpExecutorRepeatable(c_void_p(executor)) == 0
    assert on.base.aclDestroyAclOpExecutor(c_void_p(executor)) == 0
    on.second("Mul", 0, executor)


@simulated()
def test_descriptors_may_go_when_phase_2_was_called(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(SMALL), on.empty((2, 3), "f32")
    with acl.blocked(None):
        _, size, executor = on.first("Mul", x, x, out)
        for t in (x, out):
            on.base.aclDestroyTensor(c_void_p(t.handle))
        assert on.second("Mul", size, executor) == 0
    acl.ok("aclrtSynchronizeStream", None)
    np.testing.assert_array_equal(on.read(out), SMALL**2)
    assert leaked(acl) == {}


@simulated()
def test_a_missing_workspace_or_executor_is_refused_and_the_executor_is_gone(acl: Acl) -> None:
    on = Operators(acl)
    size, executor = softmax(on)
    code = on.api.aclnnSoftmax(None, c_uint64(size), c_void_p(executor), None)
    assert (code, leaked(acl).get("leaked aclOpExecutor", 0)) == (161001, 0)
    size, executor = softmax(on)
    assert on.second("Softmax", size - 1, executor, acl.malloc(size)) == 161002
    assert on.api.aclnnSoftmax(None, c_uint64(0), None, None) == 161001
    assert on.first("Softmax", None, 1, on.empty((2, 3), "f32"))[0] == 161001
    assert on.api.aclnnMulGetWorkspaceSize(None, None, None, None, None) == 161001


@simulated()
def test_an_executor_without_phase_2_is_a_leak(acl: Acl) -> None:
    on = Operators(acl)
    mul(on)
    assert leaked(acl)["leaked aclOpExecutor"] == 1
    assert acl.counted("executors") == 1


@simulated()
def test_too_many_waiting_executors_fill_the_pool(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(SMALL), on.empty((2, 3), "f32")
    codes = [on.first("Mul", x, x, out)[0] for _ in range(10001)]
    assert codes == [0] * 10000 + [561000]


@simulated()
def test_a_repeatable_executor_runs_again_with_other_addresses(acl: Acl) -> None:
    on = Operators(acl)
    x, y, out = on.tensor(SMALL), on.tensor(SMALL + 1), on.empty((2, 3), "f32")
    code, size, executor = on.first("Mul", x, y, out)
    handle = c_void_p(executor)
    assert (code, on.base.aclSetAclOpExecutorRepeatable(handle)) == (0, 0)
    for _ in range(3):
        assert on.second("Mul", size, executor) == 0
    acl.ok("aclrtSynchronizeStream", None)
    np.testing.assert_array_equal(on.read(out), SMALL * (SMALL + 1))

    other, more, last = on.tensor(SMALL * 2), on.empty((2, 3), "f32"), on.empty((2, 3), "f32")
    with acl.blocked(None):  # what was submitted before keeps its addresses
        assert on.second("Mul", size, executor) == 0
        for name, index, tensor, at in (
            ("aclSetInputTensorAddr", 1, y, other.at),
            ("aclSetOutputTensorAddr", 0, out, more.at),
        ):
            set_address = getattr(on.base, name)
            where = ctypes.c_size_t(index), c_void_p(tensor.handle), c_void_p(at)
            assert set_address(handle, *where) == 0
        assert on.second("Mul", size, executor) == 0
        where = ctypes.c_size_t(2), c_void_p(out.handle), c_void_p(last.at)
        assert on.base.AclSetTensorAddr(handle, *where) == 0
        assert on.second("Mul", size, executor) == 0
        assert on.base.aclDestroyAclOpExecutor(handle) == 0
    acl.ok("aclrtSynchronizeStream", None)
    np.testing.assert_array_equal(on.read(out), SMALL * (SMALL + 1))
    np.testing.assert_array_equal(on.read(more), SMALL * SMALL * 2)
    np.testing.assert_array_equal(on.read(last), SMALL * SMALL * 2)
    assert "leaked aclOpExecutor" not in leaked(acl)


@simulated()
def test_addresses_have_rules(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(SMALL), on.empty((2, 3), "f32")
    code, _, executor = on.first("Abs", x, out)
    assert code == 0

    def change(index: int, tensor: int, at: int, name: str = "aclSetInputTensorAddr") -> int:
        arguments = ctypes.c_size_t(index), c_void_p(tensor), c_void_p(at)
        result: int = getattr(on.base, name)(c_void_p(executor), *arguments)
        return result

    assert change(0, x.handle, out.at) == 0
    assert change(0, x.handle, out.at + 16) == 161002  # not aligned to 32
    assert change(1, x.handle, out.at) == 161002  # there is one input
    assert change(0, out.handle, out.at) == 161002  # it was x
    assert change(0, 0, out.at) == 161001
    lists = on.tensors(on.tensor(SMALL), on.tensor(SMALL))
    code, size, executor = on.first("Cat", lists, 0, on.empty((4, 3), "f32"))
    assert code == 0
    into, other = on.empty((4, 3), "f32"), on.tensor(SMALL * 2)
    member = ctypes.c_size_t(0), ctypes.c_size_t(1), c_void_p(lists.handle), c_void_p(other.at)
    assert on.base.aclSetDynamicInputTensorAddr(c_void_p(executor), *member) == 0
    beyond = ctypes.c_size_t(0), ctypes.c_size_t(2), c_void_p(lists.handle), c_void_p(other.at)
    assert on.base.aclSetDynamicInputTensorAddr(c_void_p(executor), *beyond) == 161002
    code, size, executor = on.first("Cat", lists, 0, into)
    assert on.base.aclSetDynamicTensorAddr(c_void_p(executor), *member) == 0
    assert on.second("Cat", size, executor) == 0
    acl.ok("aclrtSynchronizeStream", None)
    np.testing.assert_array_equal(on.read(into), np.concatenate([SMALL, SMALL * 2]))


@simulated()
def test_a_copy_into_a_view_cannot_be_repeated(acl: Acl) -> None:
    on = Operators(acl)
    for place, code in (
        (np.zeros((3, 2), np.float32), 0),
        (np.zeros((2, 3), np.float32).T, 561000),
    ):
        got, size, executor = on.first(
            "InplaceCopy", on.tensor(place), on.tensor(SMALL.T.copy())
        )
        assert got == 0
        assert on.base.aclSetAclOpExecutorRepeatable(c_void_p(executor)) == code
        assert on.second("InplaceCopy", size, executor) == 0


@simulated()
def test_a_workspace_belongs_to_the_operator_until_it_has_run(acl: Acl) -> None:
    on = Operators(acl)
    size, executor = softmax(on)
    workspace = acl.malloc(size)
    with acl.blocked(None):
        assert on.second("Softmax", size, executor, workspace) == 0
        acl.ok("aclrtFree", workspace)
    assert acl.aclrtSynchronizeStream(None) == 507015
    assert "workspace" in acl.message()


@simulated()
def test_who_writes_a_workspace_while_its_operator_runs_is_told(acl: Acl) -> None:
    on = Operators(acl)
    a, b = (
        on.tensor(np.ones((512, 512), np.float32)),
        on.tensor(np.ones((512, 1024), np.float32)),
    )
    code, size, executor = on.first("Mm", a, b, on.empty((512, 1024), "f32"), c_int(0))
    workspace, unfinished = acl.malloc(size), c_int(1)
    assert (code, on.second("Mm", size, executor, workspace)) == (0, 0)
    while unfinished.value:
        acl.ok("aclrtMemset", workspace, size, 0, size)
        acl.aclrtStreamQuery(None, byref(unfinished))
    assert acl.aclrtSynchronizeStream(None) == 507015
    assert "workspace" in acl.message()


@simulated()
def test_a_workspace_may_be_used_again_by_the_next_in_the_stream(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(SMALL), on.empty((2, 3), "f32")
    workspace = acl.malloc(1 << 16)
    for _ in range(20):
        code, size, executor = on.first("Softmax", x, 1, out)
        assert (code, on.second("Softmax", size, executor, workspace)) == (0, 0)
    acl.ok("aclrtSynchronizeStream", None)


@simulated()
def test_memory_that_is_gone_is_the_streams_fault(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(SMALL), on.empty((2, 3), "f32")
    _, size, executor = on.first("Abs", x, out)
    with acl.blocked(None):
        assert on.second("Abs", size, executor) == 0
        acl.ok("aclrtFree", x.at)
    assert acl.aclrtSynchronizeStream(None) == 507015
    on.call("Abs", out, on.empty((2, 3), "f32"))  # it was that one only


@simulated()
def test_host_memory_is_no_tensor(acl: Acl) -> None:
    on = Operators(acl)
    out = on.empty((2, 3), "f32")
    x = on.tensor(SMALL, at=SMALL.ctypes.data)
    code, size, executor = on.first("Abs", x, out)
    assert (code, on.second("Abs", size, executor)) == (0, 0)
    assert acl.aclrtSynchronizeStream(None) == 507015


@simulated()
def test_operators_need_a_context_and_one_of_its_streams(acl: Acl) -> None:
    on = Operators(acl)
    _, _, executor = mul(on)
    assert on.api.aclnnMul(None, c_uint64(0), c_void_p(executor), c_void_p(12345)) == 361001
    x = on.tensor(SMALL)
    acl.ok("aclrtResetDevice", 0)
    assert on.refused("Abs", x, x) == 361001


@simulated()
def test_aclnn_init_comes_once(acl: Acl) -> None:
    on = Operators(acl)
    assert on.base.aclnnInit(None) == 0
    assert on.base.aclnnInit(None) == 561000
    assert on.base.aclnnFinalize() == 0


@simulated()
def test_a_captured_operator_is_replayed(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(SMALL), on.empty((2, 3), "f32")
    code, size, executor = on.first("Abs", x, out)
    stream, model = acl.stream(), c_void_p()
    acl.ok("aclmdlRICaptureBegin", stream, 0)
    phase = on.api.aclnnAbs
    assert (code, phase(None, c_uint64(size), c_void_p(executor), c_void_p(stream))) == (0, 0)
    acl.ok("aclmdlRICaptureEnd", stream, byref(model))
    for data in (-SMALL, -3 * SMALL):
        acl.upload(x.at, data.tobytes())
        acl.ok("aclmdlRIExecuteAsync", model, stream)
        acl.ok("aclrtSynchronizeStream", stream)
        np.testing.assert_array_equal(on.read(out), -data)


@simulated(UMBEL_CANN_FAULT="kernel=Abs,kernel=Neg")
def test_a_kernel_package_can_be_missing(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(SMALL), on.empty((2, 3), "f32")
    assert [on.first(name, x, out)[0] for name in ("Abs", "Neg", "Sqrt")] == [561112] * 2 + [0]


@simulated(UMBEL_CANN_FAULT="phase1=2")
def test_one_phase_1_can_be_made_to_fail(acl: Acl) -> None:
    on = Operators(acl)
    x, out = on.tensor(SMALL), on.empty((2, 3), "f32")
    assert [on.first("Abs", x, out)[0] for _ in range(3)] == [0, 561000, 0]
    acl.umbel_simulator_fault(b"phase1=1")
    assert [on.first("Abs", x, out)[0] for _ in range(2)] == [561000, 0]


@simulated()
def test_every_dtype_has_a_scalar(acl: Acl) -> None:
    on = Operators(acl)
    x = some((5,), "f32")
    for name in DTYPES:
        got = on.run("Muls", (5,), "f32", on.tensor(x), on.scalar(1, name))
        np.testing.assert_array_equal(got, x)

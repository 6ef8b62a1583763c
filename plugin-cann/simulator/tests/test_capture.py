"""Rule 15: capture."""

from ctypes import byref, c_int, c_void_p, create_string_buffer
from functools import partial

import pytest
from simulated import H2D, Acl, in_thread, simulated

GLOBAL, THREAD_LOCAL, RELAXED = range(3)


@simulated()
def test_a_capture_runs_when_and_as_often_as_asked(acl: Acl) -> None:
    acl.start()
    stream, log = acl.stream(), list[str]()
    acl.ok("aclmdlRICaptureBegin", stream, GLOBAL)
    acl.submit(stream, lambda: log.append("a"), lambda: log.append("dropped"))
    acl.submit(stream, lambda: log.append("b"))
    model = end(acl, stream)
    assert log == []
    for _ in range(2):
        acl.ok("aclmdlRIExecuteAsync", model, None)
    acl.ok("aclrtSynchronizeStream", None)
    assert log == ["a", "b", "a", "b"]
    acl.ok("aclmdlRIDestroy", model)
    assert log[4:] == ["dropped"]
    assert acl.aclmdlRIDestroy(model) == 107017
    assert acl.aclmdlRIExecuteAsync(model, None) == 107017
    assert acl.counted("replays") == 2


def end(acl: Acl, stream: int) -> int:
    model = c_void_p()
    acl.ok("aclmdlRICaptureEnd", stream, byref(model))
    return model.value or 0


def begun(acl: Acl, mode: int = GLOBAL) -> int:
    acl.start()
    stream = acl.stream()
    acl.ok("aclmdlRICaptureBegin", stream, mode)
    return stream


@simulated()
def test_copies_are_captured_with_pinned_memory_only(acl: Acl) -> None:
    stream = begun(acl, RELAXED)
    at, pinned = acl.malloc(8), acl.made("aclrtMallocHost", 8)
    pageable = create_string_buffer(8)
    assert acl.aclrtMemcpyAsync(at, 8, pageable, 8, H2D, stream) == 107041
    acl.ok("aclrtMemcpyAsync", at, 8, pinned, 8, H2D, stream)
    acl.ok("aclrtMemsetAsync", at, 4, 0, 4, stream)
    model = end(acl, stream)
    acl.ok("aclmdlRIExecuteAsync", model, stream)
    acl.ok("aclrtSynchronizeStream", stream)
    assert acl.read(at, 8) == bytes(4) + b"\xff" * 4


@simulated()
def test_states_of_a_capture(acl: Acl) -> None:
    acl.start()
    stream, status, model = acl.stream(), c_int(), c_void_p()
    acl.ok("aclmdlRICaptureGetInfo", stream, byref(status), byref(model))
    assert (status.value, model.value) == (0, None)
    acl.ok("aclmdlRICaptureBegin", stream, GLOBAL)
    acl.ok("aclmdlRICaptureGetInfo", stream, byref(status), byref(model))
    assert status.value == 1
    assert acl.aclmdlRIExecuteAsync(model, None) == 107026
    assert acl.aclrtSynchronizeStream(stream) == 107027
    acl.ok("aclmdlRICaptureGetInfo", stream, byref(status), byref(model))
    assert status.value == 2
    assert acl.aclmdlRICaptureEnd(stream, byref(model)) == 107027
    assert model.value is None
    acl.ok("aclrtSynchronizeStream", stream)


@simulated()
def test_calls_that_wait_break_a_capture(acl: Acl) -> None:
    stream = begun(acl)
    status = c_int()
    assert acl.aclrtSynchronizeStream(stream) == 107027
    assert acl.aclrtSynchronizeStreamWithTimeout(stream, 5) == 107027
    assert acl.aclrtSynchronizeDevice() == 107027
    assert acl.aclrtStreamQuery(stream, byref(status)) == 107027
    assert acl.aclrtDestroyStream(stream) == 107027
    assert acl.aclmdlRICaptureBegin(stream, GLOBAL) == 107027
    assert "while a stream is captured" in acl.message()


@simulated()
def test_blocking_copies_while_something_is_captured(acl: Acl) -> None:
    acl.start()
    at = acl.malloc(8)

    def copy() -> int:
        acl.ok("aclrtSetDevice", 0)
        code: int = acl.aclrtMemcpy(at, 8, bytes(8), 8, H2D)
        return code

    codes = {}
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        stream = acl.stream()
        acl.ok("aclmdlRICaptureBegin", stream, mode)
        codes[mode] = copy(), in_thread(copy), acl.aclrtMemset(at, 8, 0, 8)
        acl.aclmdlRICaptureEnd(stream, byref(c_void_p()))
    assert codes[GLOBAL] == (107030, 107030, 107030)
    assert codes[THREAD_LOCAL] == (107030, 0, 107030)
    assert codes[RELAXED] == (0, 0, 0)


@simulated()
def test_what_cannot_be_captured(acl: Acl) -> None:
    acl.start()
    stream = acl.stream()
    assert acl.aclmdlRICaptureBegin(None, GLOBAL) == 107031
    assert acl.aclmdlRICaptureBegin(stream, 3) == 107000
    assert acl.aclmdlRICaptureEnd(stream, byref(c_void_p())) == 107029


@simulated(chip="310B")
def test_a_chip_that_cannot_capture(acl: Acl) -> None:
    acl.start()
    stream = acl.stream()
    assert acl.aclmdlRICaptureBegin(stream, GLOBAL) == 207000
    assert acl.aclmdlRICaptureGetInfo(stream, byref(c_int()), None) == 207000


@simulated()
def test_a_second_stream_joins_by_an_event_and_comes_back(acl: Acl) -> None:
    stream = begun(acl)
    other, log = acl.stream(), list[str]()
    event, back = acl.made("aclrtCreateEvent"), acl.made("aclrtCreateEvent")
    acl.submit(stream, lambda: log.append("a"))
    acl.ok("aclrtRecordEvent", event, stream)
    acl.ok("aclrtStreamWaitEvent", other, event)
    acl.submit(other, lambda: log.append("b"))
    assert acl.aclrtSynchronizeStream(other) == 107027
    acl.ok("aclrtRecordEvent", back, other)
    assert acl.aclrtSynchronizeEvent(back) == 107028
    acl.ok("aclrtStreamWaitEvent", stream, back)
    assert acl.aclmdlRICaptureEnd(stream, byref(c_void_p())) == 107027  # the synchronise
    acl.ok("aclrtSynchronizeStream", other)  # it is free again
    assert log == []


@simulated()
def test_streams_of_a_capture_run_in_order(acl: Acl) -> None:
    stream = begun(acl)
    other, event, log = acl.stream(), acl.made("aclrtCreateEvent"), list[str]()
    acl.submit(stream, lambda: log.append("a"))
    acl.ok("aclrtRecordEvent", event, stream)
    acl.ok("aclrtStreamWaitEvent", other, event)
    acl.submit(other, lambda: log.append("b"))
    acl.ok("aclrtRecordEvent", event, other)
    acl.ok("aclrtStreamWaitEvent", stream, event)
    acl.submit(stream, lambda: log.append("c"))
    acl.ok("aclmdlRIExecuteAsync", end(acl, stream), stream)
    acl.ok("aclrtSynchronizeStream", stream)
    assert log == ["a", "b", "c"]


@simulated()
def test_work_after_coming_back_is_not_joined(acl: Acl) -> None:
    stream = begun(acl)
    other, event = acl.stream(), acl.made("aclrtCreateEvent")
    acl.ok("aclrtRecordEvent", event, stream)
    acl.ok("aclrtStreamWaitEvent", other, event)
    acl.ok("aclrtRecordEvent", event, other)
    acl.ok("aclrtStreamWaitEvent", stream, event)
    acl.submit(other, bool)
    assert acl.aclmdlRICaptureEnd(stream, byref(c_void_p())) == 107025


@simulated()
def test_a_joined_stream_has_to_come_back(acl: Acl) -> None:
    stream = begun(acl)
    other, event = acl.stream(), acl.made("aclrtCreateEvent")
    acl.ok("aclrtRecordEvent", event, stream)
    acl.ok("aclrtStreamWaitEvent", other, event)
    assert acl.aclmdlRICaptureEnd(other, byref(c_void_p())) == 107029
    assert acl.aclmdlRICaptureEnd(stream, byref(c_void_p())) == 107025


@simulated()
def test_a_capture_cannot_wait_for_what_is_outside(acl: Acl) -> None:
    acl.start()
    stream, event = acl.stream(), acl.made("aclrtCreateEvent")
    acl.ok("aclrtRecordEvent", event, None)
    acl.ok("aclmdlRICaptureBegin", stream, GLOBAL)
    assert acl.aclrtStreamWaitEvent(stream, event) == 107024


@simulated()
def test_a_replay_costs_one_launch(acl: Acl) -> None:
    stream = begun(acl)
    for _ in range(10):
        acl.submit(stream, bool, flops=300e6, moved=8e6)  # 1 us, 5 us
    model = end(acl, stream)
    acl.ok("aclmdlRIExecuteAsync", model, stream)
    acl.ok("aclrtSynchronizeStream", stream)
    assert acl.report()["busy"] == pytest.approx(5e-6 + 10 * 5e-6)


@simulated(UMBEL_CANN_FAULT="task=2")
def test_a_fault_in_a_replay(acl: Acl) -> None:
    stream = begun(acl)
    log: list[int] = []
    for i in range(3):
        acl.submit(stream, partial(log.append, i))
    acl.ok("aclmdlRIExecuteAsync", end(acl, stream), stream)
    assert acl.aclrtSynchronizeStream(stream) == 507015
    assert log == [0, 2]


@simulated()
def test_a_capture_ends_with_its_device(acl: Acl) -> None:
    stream = begun(acl)
    dropped: list[int] = []
    acl.submit(stream, bool, lambda: dropped.append(1))
    acl.ok("aclrtResetDevice", 0)
    assert dropped == [1]

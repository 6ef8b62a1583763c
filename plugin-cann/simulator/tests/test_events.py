"""Rule 5: events."""

from ctypes import byref, c_float, c_int, c_void_p

import pytest
from simulated import Acl, simulated

SYNC, TIME_LINE = 1, 8


def recorded(acl: Acl, event: int) -> int:
    status = c_int()
    acl.ok("aclrtQueryEventStatus", event, byref(status))
    return status.value


@simulated()
def test_a_stream_waits_for_an_event(acl: Acl) -> None:
    acl.start()
    first, second, event = acl.stream(), acl.stream(), acl.made("aclrtCreateEvent")
    done, status = list[str](), c_int()
    with acl.blocked(first):
        acl.submit(first, lambda: done.append("first"))
        acl.ok("aclrtRecordEvent", event, first)
        acl.ok("aclrtStreamWaitEvent", second, event)
        acl.submit(second, lambda: done.append("second"))
        assert recorded(acl, event) == 0
        acl.ok("aclrtQueryEventWaitStatus", event, byref(status))
        assert status.value == 1
        acl.ok("aclrtQueryEvent", event, byref(status))
        assert status.value == 1  # the deprecated numbers are the other way round
    acl.ok("aclrtSynchronizeStream", second)
    assert done == ["first", "second"]
    assert recorded(acl, event) == 1
    acl.ok("aclrtQueryEventWaitStatus", event, byref(status))
    assert status.value == 0
    acl.ok("aclrtQueryEvent", event, byref(status))
    assert status.value == 0


@simulated()
def test_the_host_waits_for_an_event_of_any_device(acl: Acl) -> None:
    acl.start()
    stream, event, done = acl.stream(), acl.made("aclrtCreateEvent"), list[int]()
    acl.submit(stream, lambda: done.append(1))
    acl.ok("aclrtRecordEvent", event, stream)
    acl.ok("aclrtSetDevice", 1)
    acl.ok("aclrtSynchronizeEvent", event)
    assert done == [1]
    other = acl.stream()
    assert acl.aclrtRecordEvent(event, other) == 107000
    assert acl.aclrtStreamWaitEvent(other, event) == 107000


@simulated()
def test_a_reset_event_is_not_complete(acl: Acl) -> None:
    acl.start()
    event = acl.made("aclrtCreateEvent")
    assert recorded(acl, event) == 0
    acl.ok("aclrtRecordEvent", event, None)
    acl.ok("aclrtResetEvent", event, None)
    acl.ok("aclrtSynchronizeStream", None)
    assert recorded(acl, event) == 0
    acl.ok("aclrtRecordEvent", event, None)
    acl.ok("aclrtSynchronizeEvent", event)
    assert recorded(acl, event) == 1


@simulated()
def test_flags_say_what_an_event_is_for(acl: Acl) -> None:
    acl.start()
    times = acl.made("aclrtCreateEventWithFlag", TIME_LINE)
    assert acl.aclrtStreamWaitEvent(None, times) == 107000
    assert acl.aclrtResetEvent(times, None) == 107000
    place = c_void_p()
    assert acl.aclrtCreateEventWithFlag(byref(place), 0) == 107000
    assert acl.aclrtCreateEventWithFlag(byref(place), 0x400) == 107000
    waits = acl.made("aclrtCreateEventWithFlag", SYNC)
    acl.ok("aclrtRecordEvent", waits, None)
    acl.ok("aclrtStreamWaitEvent", None, waits)
    acl.ok("aclrtSynchronizeStream", None)
    assert acl.aclrtEventElapsedTime(byref(c_float()), waits, waits) == 107006


@simulated()
def test_ex_events(acl: Acl) -> None:
    acl.start()
    event, status = acl.made("aclrtCreateEventExWithFlag", SYNC), c_int()
    assert recorded(acl, event) == 1  # before the first record
    assert acl.aclrtResetEvent(event, None) == 107000
    assert acl.aclrtQueryEvent(event, byref(status)) == 107000
    assert acl.aclrtQueryEventWaitStatus(event, byref(status)) == 107000
    with acl.blocked(None):
        acl.ok("aclrtRecordEvent", event, None)
        assert recorded(acl, event) == 0
    acl.ok("aclrtSynchronizeEvent", event)
    acl.ok("aclrtRecordEvent", event, None)
    acl.ok("aclrtDestroyEvent", event)
    assert acl.aclrtDestroyEvent(event) == 107017
    assert acl.aclrtRecordEvent(event, None) == 107017


@simulated()
def test_time_between_events_is_the_virtual_clocks(acl: Acl) -> None:
    acl.start()
    start, end, other = (acl.made("aclrtCreateEvent") for _ in range(3))
    ms = c_float()
    acl.ok("aclrtRecordEvent", start, None)
    acl.submit(None, bool, moved=1.6e9)  # a ms at the chip's 1.6e12 bytes a second
    assert acl.aclrtEventElapsedTime(byref(ms), start, end) == 107006
    acl.ok("aclrtRecordEvent", end, None)
    acl.ok("aclrtRecordEvent", other, acl.stream())
    acl.ok("aclrtSynchronizeDevice")
    acl.ok("aclrtEventElapsedTime", byref(ms), start, end)
    assert ms.value == pytest.approx(1 + 5e-3)  # and a launch
    assert acl.aclrtEventElapsedTime(byref(ms), end, start) == 107007
    assert acl.aclrtEventElapsedTime(byref(ms), start, other) == 107006


@simulated(UMBEL_CANN_FAULT="task=1")
def test_waiting_for_an_event_tells_of_a_failure_before_it(acl: Acl) -> None:
    acl.start()
    event = acl.made("aclrtCreateEvent")
    acl.submit(None, bool)
    acl.ok("aclrtRecordEvent", event, None)
    assert acl.aclrtSynchronizeEvent(event) == 507015
    assert acl.aclrtSynchronizeStream(None) == 507015


@simulated()
def test_no_wait_outlives_the_stream_that_would_record(acl: Acl) -> None:
    acl.start()
    first, second, event = acl.stream(), acl.stream(), acl.made("aclrtCreateEvent")
    with acl.blocked(first):
        acl.ok("aclrtRecordEvent", event, first)
        acl.ok("aclrtStreamWaitEvent", second, event)
        acl.ok("aclrtDestroyStreamForce", first)
    acl.ok("aclrtSynchronizeStream", second)
    acl.ok("aclrtSynchronizeEvent", event)


@simulated(chip="310P")
def test_events_are_limited_once_they_are_recorded(acl: Acl) -> None:
    acl.start()
    events = [acl.made("aclrtCreateEvent") for _ in range(1024)]
    for event in events[:1023]:
        acl.ok("aclrtRecordEvent", event, None)
    assert acl.aclrtRecordEvent(events[-1], None) == 207007
    acl.ok("aclrtDestroyEvent", events[0])
    acl.ok("aclrtRecordEvent", events[-1], None)

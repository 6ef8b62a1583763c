"""Rule 4: order, waiting, failures."""

import threading
import time
from ctypes import byref, c_int, c_void_p
from functools import partial

from simulated import Acl, in_thread, simulated

LATER = 1.0  # seconds: much later than a thread needs


@simulated()
def test_a_stream_keeps_order_and_calls_return_before_the_work(acl: Acl) -> None:
    acl.start()
    stream, done = acl.stream(), list[int]()
    with acl.blocked(stream):
        for i in range(100):
            assert acl.submit(stream, partial(done.append, i)) == 0
        status = c_int()
        acl.ok("aclrtStreamQuery", stream, byref(status))
        assert (status.value, done) == (1, [])
    acl.ok("aclrtSynchronizeStream", stream)
    acl.ok("aclrtStreamQuery", stream, byref(status))
    assert (status.value, done) == (0, list(range(100)))


@simulated()
def test_streams_do_not_wait_for_each_other(acl: Acl) -> None:
    acl.start()
    done = threading.Event()
    with acl.blocked(acl.stream()):
        assert acl.submit(None, done.set) == 0  # on the default stream
        assert done.wait(60)


@simulated()
def test_every_task_is_dropped_once(acl: Acl) -> None:
    acl.start()
    stream, dropped = acl.stream(), list[str]()
    assert acl.submit(stream, bool, lambda: dropped.append("ran")) == 0
    acl.ok("aclrtSynchronizeStream", stream)
    assert acl.submit(12345, bool, lambda: dropped.append("refused")) == 107017
    assert dropped == ["ran", "refused"]


@simulated()
def test_a_wait_has_a_timeout(acl: Acl) -> None:
    acl.start()
    stream = acl.stream()
    with acl.blocked(stream):
        assert acl.aclrtSynchronizeStreamWithTimeout(stream, 20) == 507046
        assert acl.aclrtSynchronizeStreamWithTimeout(stream, 0) == 507046
        assert acl.aclrtSynchronizeStreamWithTimeout(stream, -2) == 107000
    acl.ok("aclrtSynchronizeStreamWithTimeout", stream, 60000)


@simulated(UMBEL_CANN_FAULT="task=2")
def test_a_fault_is_told_by_the_next_synchronise_only(acl: Acl) -> None:
    acl.start()
    stream, done = acl.stream(), list[int]()
    with acl.blocked(stream):
        for i in range(3):
            assert acl.submit(stream, partial(done.append, i)) == 0
    while len(done) < 2:
        time.sleep(0.001)
    assert acl.aclrtPeekAtLastError(0) == 0
    assert acl.aclrtSynchronizeStream(stream) == 507015
    assert done == [1, 2]  # it went on after the failure
    message = acl.message()
    assert message.startswith("EZ9999: ")
    assert "aicore exception in test: task 2" in message
    assert [acl.aclrtPeekAtLastError(0), acl.aclrtGetLastError(0)] == [507015, 507015]
    assert acl.aclrtGetLastError(0) == 0
    assert in_thread(lambda: acl.aclrtPeekAtLastError(0)) == 0
    acl.ok("aclrtSynchronizeStream", stream)


@simulated()
def test_a_task_may_find_a_fault_itself(acl: Acl) -> None:
    acl.start()
    stream = acl.stream()
    acl.submit(stream, lambda: acl.sim_task_fault(507035, b"%s failed", b"the vector core"))
    assert acl.aclrtSynchronizeDevice() == 507035
    assert "the vector core failed" in acl.message()


@simulated(UMBEL_CANN_FAULT="task=1")
def test_stop_on_failure_covers_the_context(acl: Acl) -> None:
    acl.start()
    stream, other, done = acl.stream(), acl.stream(), list[int]()
    acl.ok("aclrtSetStreamFailureMode", stream, 1)
    assert acl.aclrtSetStreamFailureMode(stream, 0) == 107000
    assert acl.aclrtSetStreamFailureMode(stream, 2) == 107000
    assert acl.submit(stream, bool) == 0
    assert acl.aclrtSynchronizeStream(stream) == 507015
    assert acl.submit(other, lambda: done.append(1)) == 507015
    assert acl.aclrtSynchronizeStream(other) == 507015
    assert done == []


@simulated(UMBEL_CANN_FAULT="hang=2")
def test_what_never_ends_is_ended_by_force(acl: Acl) -> None:
    acl.start()
    stream, dropped, ran = acl.stream(), list[int](), list[int]()
    acl.submit(stream, bool)
    acl.submit(stream, bool, lambda: dropped.append(2))
    acl.submit(stream, lambda: ran.append(3), lambda: dropped.append(3))
    assert acl.aclrtSynchronizeStreamWithTimeout(stream, 50) == 507046
    waits: list[int] = []

    def wait() -> None:
        acl.ok("aclrtSetDevice", 0)
        waits.append(acl.aclrtSynchronizeStream(stream))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    acl.ok("aclrtDestroyStreamForce", stream)
    thread.join(60)
    assert waits == [107023]
    while len(dropped) < 2:
        time.sleep(0.001)
    assert (dropped, ran) == ([2, 3], [])
    assert acl.aclrtSynchronizeStream(stream) == 107017


@simulated(UMBEL_CANN_FAULT="hang=1")
def test_a_process_ends_with_a_task_that_does_not(acl: Acl) -> None:
    acl.start()
    acl.submit(None, bool)
    assert acl.aclrtSynchronizeStreamWithTimeout(None, 20) == 507046


@simulated(UMBEL_CANN_FAULT="hang=1")
def test_a_reset_gives_up_what_never_ends(acl: Acl) -> None:
    acl.start()
    dropped: list[int] = []
    acl.submit(acl.stream(), bool, lambda: dropped.append(1))
    acl.ok("aclrtResetDevice", 0)
    assert dropped == [1]


@simulated()
def test_destroying_waits_but_not_by_force(acl: Acl) -> None:
    acl.start()
    stream, done = acl.stream(), list[int]()
    acl.submit(stream, lambda: time.sleep(0.1))
    acl.submit(stream, lambda: done.append(1))
    acl.ok("aclrtDestroyStream", stream)
    assert done == [1]
    assert acl.aclrtDestroyStream(stream) == 107017
    assert acl.aclrtDestroyStream(None) == 100000
    stream = acl.stream()
    with acl.blocked(stream):
        begun = time.monotonic()
        acl.ok("aclrtDestroyStreamForce", stream)
        assert time.monotonic() - begun < LATER


@simulated()
def test_a_handle_is_not_used_again(acl: Acl) -> None:
    acl.start()
    stream = acl.stream()
    acl.ok("aclrtDestroyStream", stream)
    assert acl.stream() != stream
    assert acl.aclrtSynchronizeStream(stream) == 107017
    assert acl.aclrtDestroyEvent(acl.stream()) == 107017  # nor one for another kind of thing


@simulated(chip="310B")
def test_streams_are_limited(acl: Acl) -> None:
    acl.start()
    for _ in range(511):  # the default one is the 512th
        stream = acl.stream()
    assert acl.aclrtCreateStream(byref(c_void_p())) == 207008
    acl.ok("aclrtDestroyStream", stream)
    acl.stream()


@simulated()
def test_many_threads_at_once(acl: Acl) -> None:
    acl.start()
    done: list[int] = []

    def work() -> None:
        acl.ok("aclrtSetDevice", 0)
        stream = acl.stream()
        for _ in range(50):
            memory = acl.malloc(100)
            acl.submit(stream, lambda: done.append(1))
            acl.submit(None, lambda: done.append(1))
            acl.ok("aclrtMemsetAsync", memory, 100, 7, 100, stream)
            acl.ok("aclrtSynchronizeStream", stream)
            assert acl.read(memory, 100) == b"\7" * 100
            acl.ok("aclrtFree", memory)
        acl.ok("aclrtDestroyStream", stream)
        done.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    acl.ok("aclrtSynchronizeDevice")
    assert len(done) == 8 * 101
    assert acl.report()["alive"]["blocks"] == 0


@simulated()
def test_callbacks_run_in_the_thread_that_subscribed(acl: Acl) -> None:
    acl.start()
    from simulated import Run

    stream, seen, ended = acl.stream(), list[str](), threading.Event()
    call = Run(lambda _: seen.append(threading.current_thread().name))
    assert acl.aclrtLaunchCallback(call, None, 1, stream) == 107015

    def serve() -> None:
        ready.set()
        while not ended.is_set():
            acl.aclrtProcessReport(20)

    ready = threading.Event()
    server = threading.Thread(target=serve, name="server")
    server.start()
    ready.wait()
    acl.ok("aclrtSubscribeReport", server.ident, stream)
    assert acl.aclrtSubscribeReport(server.ident, stream) == 107000
    acl.ok("aclrtLaunchCallback", call, None, 1, stream)
    acl.submit(stream, lambda: seen.append("next"))
    acl.ok("aclrtSynchronizeStream", stream)
    assert seen == ["server", "next"]
    ended.set()
    server.join()
    acl.ok("aclrtUnSubscribeReport", server.ident, stream)
    assert acl.aclrtUnSubscribeReport(server.ident, stream) == 107000
    assert acl.aclrtProcessReport(1) == 100036

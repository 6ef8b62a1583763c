"""Rules 1 to 3: the process, devices, contexts."""

import os
import tempfile
from ctypes import byref, c_int32, c_uint32, c_void_p, create_string_buffer
from pathlib import Path

from simulated import Acl, in_thread, simulated


@simulated()
def test_init_is_counted_and_told_when_repeated(acl: Acl) -> None:
    assert [acl.aclInit(None), acl.aclInit(None)] == [0, 100002]
    assert "called before" in acl.message()
    assert [acl.aclFinalize(), acl.aclFinalize()] == [0, 100037]


@simulated()
def test_init_with_another_configuration_is_refused(acl: Acl) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one, same, other = (Path(folder, name) for name in ("one", "same", "other"))
        one.write_text("{}")
        same.write_text("{}")
        other.write_text('{"dump": {}}')
        assert acl.aclInit(bytes(one)) == 0
        assert acl.aclInit(bytes(same)) == 100002
        assert acl.aclInit(bytes(other)) == 100000
        assert acl.aclInit(bytes(Path(folder, "missing"))) == 100003


@simulated()
def test_nothing_works_before_init(acl: Acl) -> None:
    place = c_void_p()
    assert acl.aclrtSetDevice(0) == 100001
    assert acl.aclrtMalloc(byref(place), 64, 0) == 100001
    assert acl.aclrtCreateStream(byref(place)) == 100001
    assert acl.aclrtGetDeviceCount(byref(c_uint32())) == 100001
    assert acl.sim_ready() == 100001
    assert acl.aclFinalize() == 100001


@simulated(chip="310X")
def test_a_chip_that_is_not_there(acl: Acl) -> None:
    assert acl.aclInit(None) == 100003
    assert "310X.txt" in acl.message()


@simulated(chip="310B")
def test_what_the_runtime_says_of_itself(acl: Acl) -> None:
    acl.start()
    count, version = c_uint32(), create_string_buffer(512)
    acl.ok("aclrtGetDeviceCount", byref(count))
    acl.ok("aclsysGetCANNVersion", 0, version)
    assert acl.aclrtGetSocName() == b"Ascend310B4"
    assert count.value == 1
    assert version.raw[:8] == b"8.3.RC2\0"
    assert [version.raw[i : i + 1] for i in (128, 192)] == [b"8", b"3"]
    assert version.raw[256:260] == b"RC2\0"
    assert acl.aclsysGetCANNVersion(99, version) == 100000


@simulated()
def test_a_device_that_is_not_there(acl: Acl) -> None:
    acl.ok("aclInit", None)
    assert [acl.aclrtSetDevice(n) for n in (-1, 2)] == [107001, 107001]
    assert acl.aclrtGetDevice(byref(c_int32())) == 107002
    assert acl.aclrtResetDevice(0) == 107001


@simulated()
def test_a_device_lives_until_its_last_reset(acl: Acl) -> None:
    acl.start()
    acl.ok("aclrtSetDevice", 0)
    acl.malloc(1000)
    acl.ok("aclrtResetDevice", 0)
    acl.malloc(1000)
    assert acl.report()["alive"]["blocks"] == 2
    acl.ok("aclrtResetDevice", 0)
    assert acl.report()["alive"] == {"blocks": 0, "bytes": 0, "streams": 0, "events": 0}
    assert acl.aclrtMalloc(byref(c_void_p()), 64, 0) == 107002
    acl.ok("aclrtSetDevice", 0)
    acl.ok("aclrtSetDevice", 0)
    acl.ok("aclrtResetDeviceForce", 0)
    assert acl.sim_ready() == 107002


@simulated()
def test_threads_share_the_default_context_but_must_ask_for_it(acl: Acl) -> None:
    acl.start()
    mine = acl.made("aclrtGetCurrentContext")

    def without() -> tuple[int, str]:
        return acl.aclrtMalloc(byref(c_void_p()), 64, 0), acl.message()

    def asked() -> int:
        acl.ok("aclrtSetDevice", 0)
        return acl.made("aclrtGetCurrentContext")

    code, message = in_thread(without)
    assert code == 107002
    assert message.startswith("EE1001: [PID: ")
    assert "ctx is NULL" in message
    assert in_thread(asked) == mine


@simulated()
def test_contexts(acl: Acl) -> None:
    acl.start()
    default, own = acl.made("aclrtGetCurrentContext"), acl.stream()
    made = acl.made("aclrtCreateContext", 1)
    device = c_int32()
    acl.ok("aclrtGetDevice", byref(device))
    assert device.value == 1  # it is current, and with it its device
    assert acl.aclrtSynchronizeStream(own) == 107003
    assert acl.submit(own, bool) == 107003
    acl.ok("aclrtSetCurrentContext", default)
    acl.ok("aclrtSynchronizeStream", own)
    assert acl.aclrtDestroyContext(default) == 107000
    acl.ok("aclrtDestroyContext", made)
    assert acl.aclrtDestroyContext(made) == 107000
    assert acl.aclrtSetCurrentContext(made) == 107000


@simulated()
def test_a_destroyed_context_is_nobodys(acl: Acl) -> None:
    acl.start()
    acl.ok("aclrtDestroyContext", acl.made("aclrtCreateContext", 0))
    assert acl.sim_ready() == 107002
    assert acl.aclrtSynchronizeDevice() == 107002


@simulated()
def test_a_forked_child_is_refused_and_ends(acl: Acl) -> None:
    acl.start()
    stream = acl.stream()
    with acl.blocked(stream):
        child = os.fork()
        if not child:
            codes = acl.sim_ready(), acl.aclInit(None), acl.aclrtSynchronizeStream(stream)
            raise SystemExit(0 if codes == (507899,) * 3 else 1)
        assert os.waitpid(child, 0)[1] == 0
    acl.ok("aclrtSynchronizeStream", stream)


@simulated()
def test_peers(acl: Acl) -> None:
    acl.start()
    can = c_int32()
    acl.ok("aclrtDeviceCanAccessPeer", byref(can), 0, 1)
    assert can.value == 1
    assert acl.aclrtDeviceCanAccessPeer(byref(can), 0, 0) == 107000
    assert acl.aclrtDeviceEnablePeerAccess(1, 7) == 107000
    here = acl.malloc(64)
    acl.ok("aclrtSetDevice", 1)
    there = acl.malloc(64)
    acl.ok("aclrtDeviceEnablePeerAccess", 0, 0)
    acl.ok("aclrtMemcpy", there, 64, here, 64, 3)
    acl.ok("aclrtSetDevice", 0)  # one way: this device may not reach the other's
    assert acl.aclrtMemcpy(here, 64, there, 64, 3) == 107017
    reached: list[bool] = []
    acl.submit(None, lambda: reached.extend(bool(acl.sim_at(at, 8)) for at in (here, there)))
    acl.ok("aclrtSynchronizeStream", None)
    assert reached == [True, False]
    acl.ok("aclrtDeviceEnablePeerAccess", 1, 0)
    acl.ok("aclrtMemcpy", here, 64, there, 64, 3)
    acl.ok("aclrtDeviceDisablePeerAccess", 1)
    assert acl.aclrtMemcpy(here, 64, there, 64, 3) == 107017


@simulated(chip="310P")
def test_chips_without_peers(acl: Acl) -> None:
    acl.start()
    can = c_int32(9)
    acl.ok("aclrtDeviceCanAccessPeer", byref(can), 0, 1)
    assert can.value == 0
    assert acl.aclrtDeviceEnablePeerAccess(1, 0) == 207000

"""The folder: npu-smi, toolkits that lack symbols, reports, faults chosen while it runs."""

import json
import os
import subprocess
import sys
from ctypes import byref, c_int64, c_size_t, c_void_p, create_string_buffer
from pathlib import Path

import pytest
import umbel_cann_simulator
from simulated import H2D, Acl, simulated
from umbel.errors import DeviceError

CHIPS = ("310B", "310P", "910B")
REPORTING = """
from ctypes import CDLL, byref, c_size_t, c_void_p
from umbel_cann_simulator import toolkit
acl, place = CDLL(str(toolkit() / "lib64/libascendcl.so")), c_void_p()
acl.aclInit(None), acl.aclrtSetDevice(0)
acl.aclrtMalloc(byref(place), c_size_t(100), 0)
acl.aclrtMemsetAsync(place, c_size_t(100), 0, c_size_t(100), None)
acl.aclrtSynchronizeStream(None)
acl.sim_count(b"words", 3), acl.sim_count(b"words", -1)
"""


def npu_smi(chip: str, *arguments: str) -> str:
    command = [sys.executable, str(umbel_cann_simulator.toolkit() / "bin/npu-smi"), "info"]
    env = {**os.environ, "UMBEL_CANN_SIMULATOR": chip}
    return subprocess.run(
        [*command, *arguments], env=env, check=True, capture_output=True, text=True
    ).stdout


def cells(line: str) -> list[str]:
    return [part for cell in line.strip("|").split("|") for part in cell.split()]


def test_the_table_of_an_orangepi() -> None:
    lines = npu_smi("310B").splitlines()
    assert len({len(line) for line in lines}) == 1
    head = ["NPU", "Name", "Health", "Power(W)", "Temp(C)", "Hugepages-Usage(page)"]
    assert cells(lines[3]) == head
    assert cells(lines[4])[:4] == ["Chip", "Device", "Bus-Id", "AICore(%)"]
    assert cells(lines[6])[:5] == ["0", "310B4", "OK", "7.2", "37"]
    assert cells(lines[7]) == ["0", "0", "NA", "0", "1797", "/", "8192"]


def test_the_tables_of_cards() -> None:
    assert "HBM-Usage(MB)" in npu_smi("910B")
    assert npu_smi("910B").count("910B3") == 2
    assert "HBM" not in npu_smi("310P")
    assert cells(npu_smi("310P").splitlines()[6])[3] == "NA"


@pytest.mark.parametrize("chip", CHIPS)
def test_what_else_npu_smi_tells(chip: str) -> None:
    devices = 1 if chip == "310B" else 2
    listed, numbers = npu_smi(chip, "-l"), npu_smi(chip, "-m").splitlines()
    assert listed.count("NPU ID") == devices
    assert len(numbers) == 1 + devices
    assert numbers[-1].split()[-2:][0] == "Ascend"
    memory = npu_smi(chip, "-t", "memory", "-i", "0")
    assert "Capacity(MB)" in memory
    assert "Health                         : OK" in npu_smi(chip, "-t", "health", "-i", "0")
    assert "Aicore Usage Rate(%)           : 0" in npu_smi(chip, "-t", "usages", "-i", "0")
    with pytest.raises(subprocess.CalledProcessError):
        npu_smi(chip, "-t", "usages", "-i", str(devices))


def test_npu_smi_can_be_started() -> None:
    assert os.access(umbel_cann_simulator.toolkit() / "bin/npu-smi", os.X_OK)


def test_the_toolkit_says_what_it_is() -> None:
    folder = umbel_cann_simulator.toolkit()
    assert (folder / "umbel-simulator").is_file()
    version = (folder / "version.cfg").read_text().strip().removeprefix("Version=")
    for chip in (folder / "chips").glob("*.txt"):
        assert f"\ncann {version}\n" in chip.read_text()


def test_a_toolkit_that_lacks_something(tmp_path: Path) -> None:
    gone = ("aclrtMemcpy2d", "aclmdlRIDestroy")
    folder = umbel_cann_simulator.without(tmp_path / "old", *gone)
    code = f"""
import ctypes
acl = ctypes.CDLL({str(folder / "lib64/libascendcl.so")!r})
assert not any(hasattr(acl, name) for name in {gone!r})
assert hasattr(acl, "aclrtMemcpy2dAsync")
assert acl.aclInit(None) == 0
assert acl.aclrtSetDevice(0) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    folder = umbel_cann_simulator.without(tmp_path / "less", "libascendcl.so")
    assert not (folder / "lib64/libascendcl.so").exists()
    with pytest.raises(DeviceError, match="no such symbol") as error:
        umbel_cann_simulator.without(tmp_path / "other", "aclNothing")
    assert "aclNothing" in str(error.value)


@simulated(UMBEL_CANN_FAULT="task=9,symbol=aclrtMemcpy2d,symbol=aclrtMemset")
def test_the_environment_takes_symbols_away(acl: Acl) -> None:
    names = ("aclrtMemcpy2d", "aclrtMemset", "aclrtMemcpy")
    assert [hasattr(acl.library, name) for name in names] == [False, False, True]
    assert umbel_cann_simulator.toolkit() != umbel_cann_simulator.TOOLKIT


def test_the_copy_ends_with_its_process() -> None:
    code = "import umbel_cann_simulator as s; print(s.toolkit())"
    env = {**os.environ, "UMBEL_CANN_FAULT": "symbol=aclrtMemset"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert not Path(done.stdout.strip()).parent.exists()


def test_a_report_is_written_at_exit(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    env = {**os.environ, "UMBEL_CANN_SIMULATOR_REPORT": str(path)}
    env["UMBEL_CANN_SIMULATOR"] = "310B"
    subprocess.run([sys.executable, "-c", REPORTING], env=env, check=True)
    report = json.loads(path.read_text())
    counters = report["counters"]
    expected = {"mallocs": 1, "copies": 1, "synchronises": 1, "words": 2}
    assert {name: counters[name] for name in expected} == expected
    assert report["alive"] == {"blocks": 1, "bytes": 160, "streams": 1, "events": 0}
    time = 50e-6 + 100 / 44e9
    stream = {"device": 0, "stream": 0, "tasks": 1, "busy": time, "clock": time, "bytes": 100}
    assert report["streams"] == [pytest.approx(stream)]
    assert report["busy"] == pytest.approx(time)


@simulated()
def test_a_report_that_does_not_fit_tells_its_length(acl: Acl) -> None:
    acl.start()
    text = create_string_buffer(10)
    n = acl.umbel_simulator_counters(text, c_size_t(10))
    assert n > 10
    assert len(text.value) == 9
    assert acl.umbel_simulator_counters(None, c_size_t(0)) == n


@simulated()
def test_the_clock_follows_the_chip(acl: Acl) -> None:
    acl.start()
    one, two, event = acl.stream(), acl.stream(), acl.made("aclrtCreateEvent")
    acl.submit(one, bool, flops=300e9, moved=1.6e6)  # 1 ms of arithmetic
    acl.ok("aclrtRecordEvent", event, one)
    acl.ok("aclrtStreamWaitEvent", two, event)
    acl.submit(two, bool, flops=1, moved=1.6e9)  # 1 ms of memory, after the other
    acl.ok("aclrtSynchronizeDevice")
    _, first, second = acl.report()["streams"]
    assert first["busy"] == second["busy"] == pytest.approx(1.005e-3)
    assert second["clock"] == pytest.approx(2.01e-3)
    assert acl.counted("launches") == 2


@simulated()
def test_faults_may_be_chosen_while_it_runs(acl: Acl) -> None:
    acl.start()
    acl.submit(None, bool)
    acl.ok("aclrtSynchronizeStream", None)
    acl.umbel_simulator_fault(b"task=2,kernel=aclnnAdd,kernel=aclnnMul")
    acl.submit(None, bool)
    acl.ok("aclrtSynchronizeStream", None)
    acl.submit(None, bool)
    assert acl.aclrtSynchronizeStream(None) == 507015
    assert [acl.sim_fault(name) for name in (b"task", b"hang", b"tas")] == [2, -1, -1]
    named = [acl.sim_fault_is(b"kernel", op) for op in (b"aclnnMul", b"aclnnMulX", b"aclnn")]
    assert named == [1, 0, 0]
    acl.umbel_simulator_fault(b"")
    assert acl.sim_fault(b"task") == -1


@simulated(chip="310P")
def test_the_chips_file(acl: Acl) -> None:
    from ctypes import c_char_p

    acl.sim_chip.restype = c_char_p
    assert acl.sim_chip(b"name") == b"Ascend310P3"
    assert [acl.sim_chip(key) for key in (b"nam", b"names", b"# what")] == [None] * 3
    acl.start()
    value = c_int64()
    acl.ok("aclGetDeviceCapability", 0, 0, byref(value))
    assert value.value == 8
    assert acl.aclGetDeviceCapability(0, 3, byref(value)) == 100000


@simulated()
def test_utilisation(acl: Acl) -> None:
    from ctypes import Structure, c_int32

    class Info(Structure):
        _fields_ = (("rates", c_int32 * 4), ("ext", c_void_p))

    acl.start()
    info = Info()
    with acl.blocked(None):
        acl.ok("aclrtGetDeviceUtilizationRate", 0, byref(info))
        assert list(info.rates) == [100, 100, 0, -1]
    acl.ok("aclrtSynchronizeDevice")
    acl.ok("aclrtGetDeviceUtilizationRate", 0, byref(info))
    assert list(info.rates) == [0, 0, 0, -1]
    info.ext = 1
    assert acl.aclrtGetDeviceUtilizationRate(0, byref(info)) == 107000


@simulated()
def test_messages_are_of_the_thread_and_read_once(acl: Acl) -> None:
    acl.start()
    assert acl.aclGetRecentErrMsg() is None
    acl.aclrtFree(None)
    acl.aclrtMemcpy(1, 1, 2, 2, H2D)
    message = acl.message()
    assert message.index("2 bytes into 1") < message.index("aclrtFree")  # the newest first
    trace = "TraceBack (most recent call last)"
    for part in ("EE1001: [PID: ", "Reason: ", "Solution: ", trace):
        assert part in message
    assert acl.aclGetRecentErrMsg() is None
    for _ in range(100):  # what no longer fits is the oldest
        acl.aclrtFree(None)
    assert acl.message().startswith("EE1001: ")

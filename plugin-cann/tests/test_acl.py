"""Libraries of every layout, what is missing in them, and codes as errors."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from umbel.errors import DeviceError, OutOfMemoryError
from umbel_cann.acl import LIBRARIES, Acl
from umbel_cann.acl.toolkit import MARKER, SIMULATOR, Toolkit, toolkits

Make = Callable[..., Path]


@pytest.mark.parametrize(
    "inner", ["lib64", f"{platform.machine()}-linux/lib64", "runtime/lib64"]
)
def test_layouts(toolkit_at: Make, inner: str) -> None:
    acl = Acl(Toolkit(toolkit_at(inner=inner)))
    acl.load()
    assert acl.function("aclrtGetSocName")() == b"Ascend310B4"
    assert acl.number("aclrtGetDeviceCount", kind=ctypes.c_uint32) == 2


def test_operators_in_several_libraries(toolkit_at: Make) -> None:
    """As from 8.5 on."""
    names = (*LIBRARIES[:2], "libopapi_nn.so")
    acl = Acl(Toolkit(toolkit_at("cann-8.5.0", names=names)))
    acl.load()
    assert acl.missing("Mm") is None
    assert "libopapi.so" in acl.lacking


def test_what_is_missing_is_a_reason(toolkit_at: Make) -> None:
    acl = Acl(Toolkit(toolkit_at()))
    assert acl.missing("Add") is None
    assert acl.missing("Mul") == "aclnnMul is not in this version of CANN"  # one phase alone
    assert "not know" in str(acl.missing("OfTomorrow"))
    with pytest.raises(DeviceError, match=r"(?s)aclrtMemcpy is not in this.*doctor"):
        acl.call("aclrtMemcpy", 0, 0, 0, 0, 0)


@pytest.mark.parametrize("lacking", LIBRARIES[:2])
def test_no_runtime(toolkit_at: Make, lacking: str) -> None:
    root = toolkit_at(names=tuple(n for n in LIBRARIES[:3] if n != lacking))
    with pytest.raises(DeviceError, match=rf"(?s)CANN cannot be used: {lacking}.*set_env"):
        Acl(Toolkit(root)).load()


def test_never_a_stub(toolkit_at: Make) -> None:
    root = toolkit_at(inner="runtime/lib64/stub")
    (root / "devlib").mkdir()
    (root / "lib64").symlink_to(root / "runtime/lib64/stub")
    assert Toolkit(root).library("libascendcl.so") is None


def test_libraries_elsewhere(toolkit_at: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where set_env.sh says, but not among the stubs there."""
    stub, good = toolkit_at("one", inner="devlib"), toolkit_at("two", inner="other")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{stub}/devlib:{good}/other")
    empty = toolkit_at("three", names=())
    assert Toolkit(empty).library("libascendcl.so") == good / "other/libascendcl.so"
    Acl(Toolkit(empty)).load()


def test_a_broken_library(toolkit_at: Make) -> None:
    root = toolkit_at()
    (root / "lib64/libascendcl.so").write_bytes(b"no library")
    with pytest.raises(DeviceError, match=r"CANN cannot be used: libascendcl\.so"):
        Acl(Toolkit(root)).load()


def test_codes_become_errors(toolkit_at: Make) -> None:
    """Name, the library's own words once, what to do; no memory has a type of its own."""
    acl, place = Acl(Toolkit(toolkit_at())), ctypes.c_void_p()
    with pytest.raises(DeviceError) as caught:
        acl.call("aclrtMalloc", ctypes.byref(place), 1, 0)
    told = str(caught.value)
    assert "aclrtMalloc failed: ACL_ERROR_RT_CONTEXT_NULL (107002)" in told
    assert "EE1001: [PID: 1] The argument is invalid. Reason: ctx is NULL" in told
    assert not isinstance(caught.value, OutOfMemoryError)
    with pytest.raises(OutOfMemoryError, match=r"(?s)MEMORY_ALLOCATION \(207001\).*--ctx"):
        acl.number("aclrtMalloc", 10, 0)
    assert acl.recent() is None
    assert "error 4711" in str(acl.error("aclrtFree", 4711))
    for code in (107027, 507015, 507046, 561103, 561112, 161002, 361001, 100039, 107001):
        assert acl.error("some call", code).do, code


def test_nothing_made(toolkit_at: Make) -> None:
    acl = Acl(Toolkit(toolkit_at()))
    value = ctypes.c_float(1)
    assert acl.made("aclCreateScalar", ctypes.byref(value), 1)
    with pytest.raises(DeviceError, match="aclCreateScalar gave nothing"):
        acl.made("aclCreateScalar", ctypes.byref(value), 0)


def test_which_toolkit(
    toolkit_at: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The named one first, then the newest; each once, links or not."""
    old, new, newest = (
        toolkit_at(f"ascend-toolkit/{v}", names=()) for v in ("8.0.RC3", "8.1.RC1", "8.3.RC2")
    )
    split = toolkit_at("cann-8.5.0", names=())
    (new.parent / "latest").symlink_to(new)
    assert [t.root for t in toolkits(tmp_path)] == [split, new, newest, old]
    assert [t.version for t in toolkits(tmp_path)] == ["8.5.0", "8.1.RC1", "8.3.RC2", "8.0.RC3"]
    monkeypatch.setenv("ASCEND_HOME_PATH", str(old))
    assert toolkits(tmp_path)[0].root == old
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path / "nowhere"))
    assert toolkits(tmp_path)[0].root == old


# What files of a toolkit say of one release; the other numbers are of packages and formats
VERSIONS = {
    "version.cfg": "# version: 1.0\nruntime_running_version=[7.7.0.1.238:8.1.RC1]\n",
    "opp/version.info": "Version=7.7.0.1.238\nversion_dir=8.1.RC1\ntimestamp=20250424_1\n",
    "runtime/version.info": "Version=8.1.RC1\n",
    f"{platform.machine()}-linux/ascend_toolkit_install.info": (
        "package_name=Ascend-cann-toolkit\nversion=8.1.RC1\ninnerversion=V100R001C21\n"
    ),
}


@pytest.mark.parametrize("file", VERSIONS)
def test_versions(toolkit_at: Make, file: str) -> None:
    root = toolkit_at("cann", names=())
    path = root / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("nothing of it")
    assert Toolkit(root).version == ""
    path.write_text(VERSIONS[file])
    assert Toolkit(root).version == "8.1.RC1"


def test_without_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATOR, "310B")
    monkeypatch.setitem(sys.modules, "umbel_cann_simulator", None)
    with pytest.raises(DeviceError, match="the simulator is not installed"):
        toolkits()


def test_a_simulated_toolkit(toolkit_at: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known by its marker; the chip's file tells how many devices there are."""
    import umbel_cann

    root = toolkit_at(names=())
    assert not Toolkit(root).simulated
    (root / MARKER).touch()
    (root / "chips").mkdir()
    (root / "chips/310P.txt").write_text("name Ascend310P3\ndevices 2\n")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(root))
    with pytest.raises(DeviceError, match="knows no chip '910B'"):
        umbel_cann.devices()
    (root / "chips/910B.txt").write_text("name Ascend910B3\n")
    (device,) = umbel_cann.devices()
    assert (device.title, device.priority) == ("cann:0 (simulated)", 200)


PROGRAM = """
import sys
from umbel_cann.acl.toolkit import Toolkit
from umbel_cann.runtime import PROCESS, Npu
from pathlib import Path
acl = PROCESS.start(Toolkit(Path(sys.argv[1])))
assert PROCESS.start(Toolkit(Path(sys.argv[1]))) is acl
try:
    PROCESS.start(Toolkit(Path("/nowhere")))
except Exception as error:
    print(error.what)
try:
    Npu(acl, 1)
except Exception as error:
    print(error.what)
"""


@pytest.mark.parametrize(("code", "works"), [(0, True), (100002, True), (500004, False)])
def test_initialised_once(toolkit_at: Make, code: int, works: bool) -> None:
    """That somebody else has initialised it already is success."""
    command = [sys.executable, "-c", PROGRAM, str(toolkit_at(code=code))]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    if works:
        assert done.returncode == 0, done.stderr
        assert "uses another CANN already" in done.stdout
        assert "aclrtSetDevice failed: ACL_ERROR_RT_INVALID_DEVICEID (107001)" in done.stdout
    else:
        assert "aclInit failed: ACL_ERROR_DRV_FAILURE (500004)" in done.stderr

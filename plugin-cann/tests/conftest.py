"""Toolkits of the tests' own: folders laid out as CANN's, with libraries that do almost
nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from umbel_cann.acl import LIBRARIES
from umbel_cann.acl.toolkit import SIMULATOR, VARIABLES

sys.path.insert(0, str(Path(__file__).parent))  # what tests share stands beside them

RUNTIME = """
int aclInit(const char *config) { return config ? 100000 : CODE; }
int aclFinalize(void) { return 0; }
const char *aclrtGetSocName(void) { return "Ascend310B4"; }
static const char *said = "EE1001: [PID: 1] The argument is invalid.\\n Reason: ctx is NULL";
const char *aclGetRecentErrMsg(void) { const char *s = said; said = 0; return s; }
int aclrtGetDeviceCount(unsigned *count) { *count = 2; return 0; }
int aclrtMalloc(void **at, unsigned long n, int policy)
{
    *at = 0;
    return n > 9 ? 207001 : 107002;
}
int aclrtSetDevice(int device) { return device ? 107001 : 0; }
"""
SOURCES = {
    "libascendcl.so": RUNTIME,
    "libnnopbase.so": "void *aclCreateScalar(void *v, int t) { return t ? v : 0; }",
    "libopapi.so": "int aclnnAddGetWorkspaceSize, aclnnAdd, aclnnMulGetWorkspaceSize;",
    "libopapi_nn.so": "int aclnnMmGetWorkspaceSize, aclnnMm;",
}

Make = Callable[..., Path]


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where it is kept what chips can do: they are tried out once for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def tried_out(kept: Path) -> Callable[[str], None]:
    """tried_out(chip): what a simulated chip can do is known, without the faults that a test
    asks for."""

    @cache
    def ready(chip: str) -> None:
        env = {**os.environ, SIMULATOR: chip, "XDG_CACHE_HOME": str(kept)}
        command = [sys.executable, "-m", "umbel", "cann", "probe"]
        subprocess.run(command, env=env, check=True, capture_output=True)

    return ready


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    for name in (SIMULATOR, *VARIABLES, "ASCEND_OPP_PATH", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """built(name, code): a library's file; aclInit of the runtime answers with the code."""
    folder = tmp_path_factory.mktemp("libraries")

    def make(name: str, code: int = 0) -> Path:
        out = folder / str(code) / name
        if not out.exists():
            out.parent.mkdir(exist_ok=True)
            command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", f"-DCODE={code}"]
            command += ["-x", "c", "-", "-o", str(out)]
            subprocess.run(command, input=SOURCES[name], text=True, check=True)
        return out

    return make


@pytest.fixture
def toolkit_at(built: Callable[[str, int], Path], tmp_path: Path) -> Make:
    """toolkit_at(folder, inner, libraries, code): a toolkit in the test's own root."""

    def make(
        where: str = "ascend-toolkit/8.1.RC1",
        inner: str = "lib64",
        names: tuple[str, ...] = LIBRARIES[:3],
        code: int = 0,
    ) -> Path:
        root = tmp_path / "usr/local/Ascend" / where
        folder = root / inner
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(built(name, code).read_bytes())
        return root

    return make


@pytest.fixture
def run(tmp_path: Path, tried_out: Callable[[str], None]) -> Callable[..., object]:
    """run(chip, *arguments, fault=, form=): Python with these; nothing it made may be left."""

    def on(chip: str, *arguments: object, leaks: bool = False, **given: str) -> object:
        tried_out(chip)
        report = tmp_path / "report.json"
        env = {**os.environ, "UMBEL_CANN_SIMULATOR": chip}
        env |= {"UMBEL_CANN_SIMULATOR_REPORT": str(report)}
        names = {"fault": "UMBEL_CANN_FAULT", "form": "UMBEL_CANN_SIMULATOR_FORM"}
        env |= {names[key]: value for key, value in given.items()}
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
        if not leaks:
            told = json.loads(report.read_text())
            left = {k: n for k, n in told["counters"].items() if k.startswith("leaked") and n}
            assert left == {}, done.stderr
            assert not any(told["alive"].values()), told["alive"]
        return done

    return on

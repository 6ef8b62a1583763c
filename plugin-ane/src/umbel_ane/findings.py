"""What `umbel doctor` says of this machine's Neural Engine. Nothing is compiled for it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

from umbel.errors import UmbelError
from umbel.hookspecs import Finding

from umbel_ane import profile
from umbel_ane.drivers import choose
from umbel_ane.drivers.choose import SIMULATOR
from umbel_ane.drivers.objc.calls import Calls
from umbel_ane.drivers.objc.driver import device, load
from umbel_ane.drivers.objc.native import Native, Rubicon
from umbel_ane.drivers.objc.preflight import preflight, require

OLDEST = 15  # macOS whose compiler knows the dialect ios18, in which programs are written
KNOWN = 27  # the newest whose methods were reported
ROOM = 4  # GB: weights of a model's programs lie there while they are compiled
PUBLIC = "without it there is no second way: pip install 'umbel-plugin-ane[coreml]'"


def findings() -> Sequence[Finding]:
    if name := choose.simulated():
        return [_simulator(name)]
    if platform.system() != "Darwin":
        do = f"; {SIMULATOR}={profile.DEFAULT} simulates one, for development"
        return [Finding("note", f"no Neural Engine: this is {platform.system()}{do}")]
    if platform.machine() != "arm64":
        return [_intel()]
    return [*_system(), *_private(), *_packages(), *_room()]


def _simulator(name: str) -> Finding:
    try:
        found = profile.load(name)
    except UmbelError as error:
        do = f"set {SIMULATOR} to one of {', '.join(profile.names())}, or unset it"
        return Finding("error", f"{SIMULATOR}={name}: {error.what}", do)
    what = f"a simulator stands for the Neural Engine: {found.name}, {found.description}"
    return Finding("note", what)


def _intel() -> Finding:
    if _sysctl("hw.optional.arm64") == "1":
        what = "Python is made for Intel and runs under Rosetta: it cannot use the engine"
        return Finding("error", what, "install a Python for arm64, and Umbel into that")
    return Finding("note", "no Neural Engine: this is an Intel Mac")


def _sysctl(name: str) -> str:
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()


def _system() -> Iterator[Finding]:
    version = choose.macos()
    major = int(version.partition(".")[0] or 0)
    if major < OLDEST:
        what = f"macOS {version} is older than {OLDEST}: its compiler does not know the dialect"
        do = f"update to macOS {OLDEST} or newer; `umbel ane report` shows what works meanwhile"
        yield Finding("warning", f"{what} (ios18) of programs", do)
    elif major > KNOWN:
        what = f"macOS {version} is newer than all that were reported to work"
        yield Finding("warning", what, "`umbel ane report` shows what works: please send it")
    else:
        yield Finding("ok", f"macOS {version}")
    rules, why = choose.profile_of(choose.architecture(), version)
    yield Finding("note", f"programs keep to the rules of {rules.name}: {why}")
    yield Finding("note", "System Integrity Protection can stay on: nothing here needs it off")
    what = "a process in the background may be denied the engine (reported of iOS 27): a server"
    yield Finding("note", f"{what} that fails so is to run in a session of its user")


def _private() -> Iterator[Finding]:
    """Whether the private API can be called, and what it tells of the chip."""
    do = "`-O ane.driver=coreml` takes the public way meanwhile"
    try:
        native: Native = Rubicon()
        load(native)
        checked = preflight(native)
        system = f"macOS {choose.macos()}"
        require(checked, system)
    except UmbelError as error:
        got = f": {error.got}" if error.got else ""
        expected = f" (expected {error.expected})" if error.expected else ""
        yield Finding("error", f"{error.what}{got}{expected}", error.do or do)
        return
    there = frozenset(c.method for c in checked if c.there)
    yield Finding("ok", f"the private API is the known one: {len(there)} methods looked at")
    for missing in (c for c in checked if not c.there):
        yield Finding("note", f"this macOS has no {missing.method}: it is done without")
    try:
        chip = device(Calls(native), there, choose.macos())
    except UmbelError as error:
        yield Finding("error", error.what, error.do or do)
        return
    what = f"a Neural Engine {chip.architecture or 'of unknown kind'}, {chip.cores} cores"
    yield Finding("ok", what)
    if chip.engines > 1:
        what = f"{chip.engines} engines: the system chooses which one runs a program"
        yield Finding("note", f"{what}, one program at a time is not made faster by the other")


def _packages() -> Iterator[Finding]:
    if importlib.util.find_spec("coremltools") is None:
        yield Finding("note", f"coremltools is not installed: {PUBLIC}")
    else:
        yield Finding("ok", "coremltools is here: Core ML can be the way to the engine")


def _room() -> Iterator[Finding]:
    folder = os.environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(folder).free / 1e9
    except OSError as error:
        yield Finding("error", f"the temporary folder cannot be used: {error}", "set TMPDIR")
        return
    what = f"{free:.0f} GB free in the temporary folder, where programs are compiled"
    if free < ROOM:
        do = f"a model needs as much as its weights: free {ROOM} GB or more"
        yield Finding("warning", what, do)
    else:
        yield Finding("ok", what)

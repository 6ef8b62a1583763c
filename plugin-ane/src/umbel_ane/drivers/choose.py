"""Which way to the Neural Engine there is here, and whose rules it has to keep."""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import subprocess
import sys

from umbel.errors import DeviceError, OptionError

from umbel_ane import profile
from umbel_ane.drivers import Driver
from umbel_ane.profile import Profile

SIMULATOR = "UMBEL_ANE_SIMULATOR"  # names a profile; the simulator stands for the engine
KINDS = ("auto", "private", "coreml")
CHIPS = {"M1": "h13g", "M2": "h14g", "M3": "h15g", "M4": "h16g", "M5": "h17g"}

log = logging.getLogger("umbel.ane")


def driver(kind: str = "auto") -> Driver:
    """The driver of that kind; "auto" takes the private API, or Core ML where that is not to be
    had, and says so. "simulator:NAME" is the simulator with that profile."""
    named, _, name = kind.partition(":")
    if kind not in KINDS and not (named == "simulator" and name):
        msg = "there is no such way to the Neural Engine"
        raise OptionError(msg, expected=", ".join((*KINDS, "simulator:PROFILE")), got=kind)
    name = name if named == "simulator" else simulated() or ""
    if name:
        from umbel_ane.drivers.simulator import Simulator

        if kind in ("private", "coreml"):
            log.warning("the simulator stands for the Neural Engine, and not %s", kind)
        return Simulator(profile.load(name))
    _require_mac()
    if kind == "coreml":
        return _coreml()
    try:
        return _private()
    except DeviceError as error:
        if kind == "private" or importlib.util.find_spec("coremltools") is None:
            raise
        log.warning("the Neural Engine is used through Core ML, because: %s", error)
        return _coreml()


def simulated() -> str | None:
    """The profile of the simulator that stands for the engine, if one does."""
    return os.environ.get(SIMULATOR) or None


def rules() -> Profile:
    """What programs have to keep to: of the simulated chip, of this Mac, or, where no engine
    is, the default."""
    if name := simulated():
        return profile.load(name)
    return profile_of(architecture(), macos())[0] if macos() else profile.load()


def profile_of(chip: str, system: str) -> tuple[Profile, str]:
    """The profile for a chip, by its `aneArchitectureType`, under a macOS; and why that one.

    >>> profile_of("h13g", "14.5")[0].name, profile_of("h16g", "27.0.1")[0].name
    ('m1', 'm4-macos27')
    """
    first = system.partition(".")[0]
    major = int(first) if first.isdecimal() else 0
    if chip.startswith("h13"):
        return profile.load("m1"), f"{chip} is an M1"
    if chip.startswith("h16") and major >= 27:
        return profile.load("m4-macos27"), f"{chip} is an M4, under macOS {system}"
    why = f"{chip or 'the chip'} under macOS {system} was not measured: the strict rules"
    if chip.startswith("h16") and major == 15:
        why = f"{chip} is an M4, under macOS {system}"
    return profile.load(), why


def macos() -> str:
    """15.3; nothing where this is no Mac."""
    return platform.mac_ver()[0] if sys.platform == "darwin" else ""


def architecture() -> str:
    """Of this Mac's engine by the name of its chip, "Apple M4 Pro", without the private API."""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next((CHIPS[word] for word in told.stdout.split() if word in CHIPS), "")


def _require_mac() -> None:
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return
    msg = "there is no Neural Engine here"
    here = f"{platform.system()} on {platform.machine()}"
    if sys.platform == "darwin":
        here += " (an Intel Mac, or Python runs under Rosetta)"
    do = f"take another device; {SIMULATOR}={profile.DEFAULT} simulates one, for development"
    raise DeviceError(msg, expected="a Mac with Apple silicon", got=here, do=do)


def _private() -> Driver:
    from umbel_ane.drivers.objc import Private

    return Private.open()


def _coreml() -> Driver:
    from umbel_ane.drivers.coreml import CoremlDriver

    return CoremlDriver()

"""Where CANN is: the folders of all its layouts, and what a folder has. Loads nothing.

Up to 8.3 a toolkit is in `/usr/local/Ascend/ascend-toolkit/<version>` (`latest` leads to one),
from 8.5 on in `/usr/local/Ascend/cann-<version>`; a runtime alone is in `nnrt`. `set_env.sh`
names the chosen one in ASCEND_TOOLKIT_HOME or ASCEND_HOME_PATH. A simulator's folder is laid
out like a toolkit and has a marker file.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
from umbel.errors import DeviceError

# A release such as 8.1.RC1; beside it stand numbers of packages (7.7.0.1.238) and of the format
_RELEASE = re.compile(
    r"(?:_running_version=\[[^:\]\n]*:|^version_dir=|^version=)(\d+\.\d+[\w.]*)", re.MULTILINE
)
_ALONE = re.compile(r"^Version=(\d+\.\d+[\w.]*)", re.MULTILINE)  # where no release is told
SIMULATOR = "UMBEL_CANN_SIMULATOR"  # a chip: the installed simulator, as that chip
MARKER = "umbel-simulator"
VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
INSTALLED = ("cann-*", "cann", "ascend-toolkit/latest", "ascend-toolkit/[0-9]*", "nnrt/latest")
STUBS = {"stub", "stubs", "devlib"}  # libraries to link against, which do nothing
_BUILT_IN = "opp/built-in/op_impl/ai_core/tbe"
_OPERATORS = f"{_BUILT_IN}/op_api/lib/linux"


@attrs.frozen
class Toolkit:
    """One folder with CANN in it, or with what pretends to be."""

    root: Path

    @property
    def simulated(self) -> bool:
        return (self.root / MARKER).is_file()

    @property
    def chip(self) -> str:
        """Which chip a simulator pretends to be."""
        return os.environ.get(SIMULATOR) or "910B"

    @property
    def simulated_devices(self) -> int:
        """How many a simulator has, as its file of that chip says."""
        path = self.root / "chips" / f"{self.chip}.txt"
        try:
            text = path.read_text()
        except OSError as error:
            known = ", ".join(sorted(p.stem for p in path.parent.glob("*.txt")))
            msg = f"the simulator knows no chip {self.chip!r}"
            do = f"set {SIMULATOR} to one of them, or unset it"
            raise DeviceError(msg, where=SIMULATOR, expected=known, do=do) from error
        found = re.search(r"^devices (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 1

    @property
    def version(self) -> str:
        """As its files or its name tell it; empty where they do not."""
        info = f"{platform.machine()}-linux/ascend_toolkit_install.info"
        for file in (info, "version.cfg", "opp/version.info", "runtime/version.info"):
            try:
                text = (self.root / file).read_text(errors="replace")
            except OSError:
                continue
            if found := _RELEASE.search(text) or _ALONE.search(text):
                return found[1]
        named = re.search(r"(\d+\.\d+[\w.]*)$", self.root.resolve().name)
        return named[1] if named else ""

    def folders(self) -> Iterator[Path]:
        """Those that may hold libraries."""
        machine = platform.machine()
        for inner in ("lib64", f"{machine}-linux/lib64", "runtime/lib64", "fwkacllib/lib64"):
            yield self.root / inner
        yield self.root / _OPERATORS / machine
        if not self.simulated:
            paths = os.environ.get("LD_LIBRARY_PATH", "").split(":")
            yield from (Path(path) for path in paths if path)

    def kernels(self) -> Iterator[Path]:
        """What changes when kernels are installed; of a simulator the chip's file."""
        if self.simulated:
            yield self.root / "chips" / f"{self.chip}.txt"
            return
        yield from sorted((self.root / _BUILT_IN).glob("kernel/*"))
        if packages := os.environ.get("ASCEND_OPP_PATH"):
            yield Path(packages)

    def library(self, name: str) -> Path | None:
        """A library's file; never a stub."""
        for folder in self.folders():
            path = folder / name
            if path.is_file() and not STUBS & {*path.parts, *path.resolve().parts}:
                return path
        return None


def toolkits(root: Path = Path("/")) -> list[Toolkit]:
    """What is here, the chosen one first; with the variable of the simulator only that."""
    if os.environ.get(SIMULATOR):
        return [_simulator()]
    named = [Path(value) for name in VARIABLES if (value := os.environ.get(name))]
    base = root / "usr/local/Ascend"
    found = [p for pattern in INSTALLED for p in sorted(base.glob(pattern), key=_age)]
    folders = dict.fromkeys(path.resolve() for path in (*named, *found) if path.is_dir())
    return [Toolkit(path) for path in folders]


def toolkit() -> Toolkit | None:
    """The one to use."""
    return next(iter(toolkits()), None)


def required(where: str) -> Toolkit:
    """The one to use; a `DeviceError` where there is none."""
    found = toolkit()
    if found is None:
        msg, do = "there is no CANN", "install the toolkit, or source its set_env.sh"
        raise DeviceError(msg, where=where, do=do)
    return found


def _simulator() -> Toolkit:
    try:
        module = importlib.import_module("umbel_cann_simulator")
    except ImportError as error:
        msg, do = "the simulator is not installed", f"unset {SIMULATOR}, or install it"
        raise DeviceError(msg, where=SIMULATOR, got=error, do=do) from error
    return Toolkit(Path(module.toolkit()))


def _age(path: Path) -> list[int]:
    """The newest first."""
    return [-int(number) for number in re.findall(r"\d+", path.name)]

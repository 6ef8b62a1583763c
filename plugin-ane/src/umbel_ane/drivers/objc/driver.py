"""The private API as a driver."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from umbel.errors import DeviceError

from umbel_ane.drivers import ChipInfo
from umbel_ane.drivers import Descriptor as AnyDescriptor
from umbel_ane.drivers.objc import encodings as m
from umbel_ane.drivers.objc import staging
from umbel_ane.drivers.objc.calls import Calls
from umbel_ane.drivers.objc.encodings import Method
from umbel_ane.drivers.objc.model import Descriptor, Model, Process
from umbel_ane.drivers.objc.native import FRAMEWORK, Native, Rubicon
from umbel_ane.drivers.objc.preflight import preflight, require
from umbel_ane.drivers.objc.surface import Functions, Surface
from umbel_ane.profile import Profile

log = logging.getLogger("umbel.ane")


@attrs.define(eq=False)
class Private:
    """`Private.open()`; the system's own counters are those of the process."""

    calls: Calls
    available: frozenset[Method]
    chip: ChipInfo
    profile: Profile
    why: str  # that profile
    root: Path
    _functions: Functions
    name = "private API"
    simulated = False

    @classmethod
    def open(cls, native: Native | None = None) -> Private:
        """Loads the framework, and refuses one whose methods are not those that are known."""
        from umbel_ane.drivers.choose import macos, profile_of

        native = native or Rubicon()
        load(native)
        checked = preflight(native)
        system = macos() or platform.system()
        require(checked, f"macOS {system}")
        available = frozenset(c.method for c in checked if c.there)
        calls = Calls(native)
        chip = device(calls, available, system)
        rules, why = profile_of(chip.architecture, system)
        log.info("rules of the profile %s: %s", rules.name, why)
        root = Path(calls.temporary())
        return cls(calls, available, chip, rules, why, root, Functions(calls))

    @property
    def compiles(self) -> int:
        return Process.compiles

    def info(self) -> ChipInfo:
        return self.chip

    def descriptor(self, text: bytes, weights: Mapping[str, bytes | memoryview]) -> Descriptor:
        return Descriptor.of(self.calls, text, weights)

    def model(self, descriptor: AnyDescriptor) -> Model:
        if not isinstance(descriptor, Descriptor):
            msg = f"a descriptor of another driver: {type(descriptor).__name__}"
            raise TypeError(msg)
        return Model.of(self.calls, self.available, descriptor, self.root)

    def surface(self, nbytes: int) -> Surface:
        return Surface.make(self._functions, nbytes)

    def cached(self) -> Sequence[str]:
        return staging.cached(self.root)

    def clear(self) -> int:
        """What the system itself has kept goes when it needs the room: it drops a program only
        for who still has it whole (`Model.purge`)."""
        return staging.clear(self.root)

    def status(self) -> Mapping[str, object]:
        missing = sorted(str(x) for x in set(m.CHECKED) - self.available)
        told: dict[str, object] = {"profile": f"{self.profile.name} ({self.why})"}
        return {**told, "missing methods": ", ".join(missing)} if missing else told

    def close(self) -> None:
        """Models and surfaces are released by who made them."""
        self.calls.close()


def load(native: Native) -> None:
    """The libraries, the private one last."""
    try:
        for library in ("objc", "CoreFoundation", "Foundation", "IOSurface"):
            native.load(library)
        native.load("AppleNeuralEngine")
    except OSError as error:
        msg = "AppleNeuralEngine.framework cannot be loaded"
        do = "`-O ane.driver=coreml` takes the public way"
        raise DeviceError(msg, where=FRAMEWORK, got=str(error), do=do) from error


def device(calls: Calls, available: frozenset[Method], system: str) -> ChipInfo:
    """What `_ANEDeviceInfo` tells; its methods are the class's, and some give plain numbers."""

    def number(method: Method, default: int) -> int:
        return int(calls.ask(method)) if method in available else default

    def text(method: Method) -> str:
        return calls.text(calls.ask(method)) if method in available else ""

    with calls.pool():
        if not number(m.has_engine, 1):
            msg = "this Mac has no Neural Engine that can be used"
            raise DeviceError(msg, do="take another device; a virtual machine has none")
        return ChipInfo(
            architecture=text(m.architecture),
            engines=number(m.engines, 1),
            cores=number(m.cores, 16),
            board=number(m.board, 0),
            sub_type=text(m.sub_type),
            system=f"macOS {system}",
        )

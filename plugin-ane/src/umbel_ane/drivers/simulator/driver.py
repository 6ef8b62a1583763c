"""The simulated way to the Neural Engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from umbel_ane.drivers import AneError, ChipInfo
from umbel_ane.drivers import Descriptor as AnyDescriptor
from umbel_ane.drivers.simulator.clock import PROCESS, Clock
from umbel_ane.drivers.simulator.faults import Faults
from umbel_ane.drivers.simulator.model import Descriptor, Model
from umbel_ane.drivers.simulator.store import Store
from umbel_ane.drivers.simulator.surface import Surface
from umbel_ane.profile import Profile


@attrs.define(eq=False)
class Simulator:
    """`Simulator(profile.load("m1"))`; several in one process share its compile counter."""

    profile: Profile
    clock: Clock = attrs.field(factory=Clock, init=False)
    faults: Faults = attrs.field(factory=Faults.from_environment, init=False)
    store: Store = attrs.field(init=False)
    name = "simulator"
    simulated = True

    def __attrs_post_init__(self) -> None:
        self.store = Store.of(self.profile.name)

    @property
    def compiles(self) -> int:
        return PROCESS.compiles

    def info(self) -> ChipInfo:
        chip = self.profile
        system = f"macOS {chip.macos}"
        return ChipInfo(chip.chip, chip.engines, chip.cores, system=system)

    def descriptor(self, text: bytes, weights: Mapping[str, bytes | memoryview]) -> Descriptor:
        return Descriptor.of(text, weights, self.profile)

    def model(self, descriptor: AnyDescriptor) -> Model:
        assert isinstance(descriptor, Descriptor)
        return Model.new(descriptor, self.profile, self.clock, self.faults, self.store)

    def surface(self, nbytes: int) -> Surface:
        if nbytes < 1 or self.faults.hit("surface"):
            msg = f"a surface of {nbytes} bytes cannot be made"
            raise AneError(msg, domain="", text="IOSurfaceCreate() gave nothing")
        self.clock.tick("surface", 0.0)
        return Surface.new(nbytes)

    def cached(self) -> Sequence[str]:
        return self.store.cached()

    def clear(self) -> int:
        return self.store.clear()

    def status(self) -> Mapping[str, object]:
        counts = self.clock.counts
        return {
            "profile": self.profile.name,
            "virtual clock": f"{self.clock.ms:.3f} ms",
            "simulated compiles": counts["compile"],
            "simulated dispatches": counts["evaluate"],
        }

    def close(self) -> None:
        self.clock.write(profile=self.profile.name)

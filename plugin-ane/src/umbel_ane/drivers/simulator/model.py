"""A program's life: staged, compiled (or found compiled), loaded, evaluated, unloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import attrs
import numpy as np

from umbel_ane import costs
from umbel_ane.drivers import QOS, AneError, Attributes, Request
from umbel_ane.drivers.simulator import checks, errors
from umbel_ane.drivers.simulator.checks import Made
from umbel_ane.drivers.simulator.clock import PROCESS, Clock
from umbel_ane.drivers.simulator.constants import Constants
from umbel_ane.drivers.simulator.evaluate import Executable, prepare
from umbel_ane.drivers.simulator.faults import Faults, SimulatedCrash
from umbel_ane.drivers.simulator.staging import Staged, folder
from umbel_ane.drivers.simulator.store import Snapshot, Store
from umbel_ane.drivers.simulator.surface import Surface
from umbel_ane.mil.parse import MilError, parse
from umbel_ane.mil.program import Function, Program, Type
from umbel_ane.profile import Profile


@attrs.frozen
class Descriptor:
    text: bytes
    weights: Mapping[str, bytes | memoryview]
    hex_id: str

    @classmethod
    def of(cls, text: object, weights: object, profile: Profile) -> Descriptor:
        """The identifier is three SHA-256: of the text, of the weights (their paths, and what
        is in them where the profile says so), of the options, which are none."""
        if not isinstance(text, bytes):
            msg = f"constraint 9: MIL text must be bytes (NSData), and is {type(text).__name__}"
            raise SimulatedCrash(msg)
        if not isinstance(weights, Mapping):
            msg = f"constraint 11: weights must be a mapping, and are {type(weights).__name__}"
            raise SimulatedCrash(msg)
        keys = hashlib.sha256()
        for path in sorted(weights):
            keys.update(path.encode() + b"\0")
            if profile.id_of_contents:
                keys.update(hashlib.sha256(weights[path]).digest())
        parts = hashlib.sha256(text).hexdigest(), keys.hexdigest(), hashlib.sha256().hexdigest()
        return cls(text, weights, "_".join(part.upper() for part in parts))


@attrs.define(eq=False)
class Model:
    descriptor: Descriptor
    profile: Profile
    clock: Clock
    faults: Faults
    store: Store
    staged: Staged
    _main: Function | None = None
    _run: Executable | None = None  # while it is loaded
    _estimate: costs.Estimate | None = None

    @classmethod
    def new(
        cls,
        descriptor: Descriptor,
        profile: Profile,
        clock: Clock,
        faults: Faults,
        store: Store,
    ) -> Model:
        staged = Staged(folder(descriptor.hex_id))
        for path in descriptor.weights:
            staged.file(path)
        return cls(descriptor, profile, clock, faults, store, staged)

    @property
    def hex_id(self) -> str:
        return self.descriptor.hex_id

    def compiled_exists(self) -> bool:
        return self.store.has(self.hex_id)

    def compile(self, qos: int = QOS) -> None:
        """Reads what is staged, checks it, and keeps a copy."""
        self._stage()
        self.faults.crash("compile")
        limit = self.profile.compile_limit
        if limit and PROCESS.compiles >= limit:
            self._at_limit()
        if self.faults.hit("compile"):
            msg = "a compile failed, as was asked for"
            raise errors.compiling(msg)
        text, files = self.staged.text(), self.staged.files(self.descriptor.weights)
        if text is None:
            msg = "a compile failed: model.mil is not staged"
            raise errors.invalid(msg)
        program = parsed(text)
        self._refuse(Made(self.profile, program, files, text=text))
        prepare(program.main, Constants(files, {}, shapes_only=True), self.profile)
        try:
            self.store.keep(self.hex_id, text, files)
        except OSError as error:
            msg = f"a compile failed: what is compiled cannot be kept ({error})"
            raise errors.compiling(msg) from error
        PROCESS.compiles += 1
        size = sum(data.nbytes for data in files.values())
        self.clock.tick("compile", costs.compiling(self.profile.costs, size), self.hex_id)

    def _at_limit(self) -> None:
        if self.profile.at_limit == "crash":
            msg = f"constraint 5: compile {PROCESS.compiles + 1} of a process"
            raise SimulatedCrash(msg)
        msg = "the compile said no, and nothing about why"
        do = f"a process may compile {self.profile.compile_limit} programs (constraint 5)"
        raise AneError(msg, domain="", code=0, text="", do=do)

    def _refuse(self, made: Made) -> None:
        found = checks.violations(made, checks.COMPILE, errors.INVALID)
        if self.profile.blob_error == "error":
            rule = checks.CONSTRAINTS[8]
            found += [(rule, why) for why in rule.check(made)]
        for rule, why in found:
            error = errors.compiling if rule.symptom == checks.COMPILE else errors.invalid
            msg = "a compile failed"
            raise error(msg, str(rule), why)

    def load(self, qos: int = QOS) -> None:
        self._stage()
        self.faults.crash("load")
        if self.faults.hit("load"):
            msg = "a load failed, as was asked for"
            raise errors.loading(msg)
        found = self._found()
        program = parsed(found.text)
        made = Made(self.profile, program, found.files)
        for rule, why in checks.violations(made, errors.LOAD):
            msg = "a load failed"
            raise errors.loading(msg, str(rule), why)
        constants = Constants(found.files, found.digests)
        self._main, self._run = program.main, prepare(program.main, constants, self.profile)
        self._estimate = costs.estimate(program, self.profile)
        self.clock.tick("load", self.profile.costs.load_ms, self.hex_id)

    def _found(self) -> Snapshot:
        """What a load reads: the copy of the compile, or with it what is staged now."""
        rereads = self.profile.reload == "reread" and "stale" not in self.faults.asked
        if self.profile.verifies_bundle and self.staged.text() is None:
            msg = "a load failed: model.mil is not staged"
            raise errors.unstaged(msg)
        try:
            found = self.store.snapshot(self.hex_id)
        except (OSError, ValueError) as error:
            msg = f"a load failed: the program is not compiled ({error})"
            raise errors.loading(msg) from error
        if rereads:
            return Snapshot(found.text, self.staged.files(found.files), {})
        return found

    def evaluate(self, request: Request, qos: int = QOS) -> None:
        self.faults.crash("evaluate")
        if self._run is None:
            raise errors.unloaded()
        if self.faults.hit("evaluate"):
            msg = "an evaluation failed, as was asked for"
            raise errors.evaluating(msg)
        if PROCESS.poisoned:
            msg = f"an evaluation failed: `{PROCESS.poisoned}` has poisoned the process"
            raise errors.evaluating(msg)
        inputs, outputs = _own(request.inputs), _own(request.outputs)
        self._check_surfaces(inputs, outputs)
        given = {}
        for (name, kind), surface in zip(self._bound("inputs"), inputs, strict=True):
            values = surface.values(kind, packed=self.profile.packed)
            given[name] = values.astype(
                np.float32 if values.dtype.kind == "f" else values.dtype
            )
        made = self._damaged(self._run(given))
        with np.errstate(all="ignore"):
            for (name, kind), surface in zip(self._bound("outputs"), outputs, strict=True):
                surface.values(kind, packed=self.profile.packed)[...] = made[name]
        self._count((*inputs, *outputs))

    def _bound(self, side: str) -> list[tuple[str, Type]]:
        assert self._main is not None
        return checks.bound(self._main, self.profile, side)

    def _check_surfaces(self, inputs: Sequence[Surface], outputs: Sequence[Surface]) -> None:
        assert self._main is not None
        wanted = len(self._main.inputs), len(self._main.outputs)
        if (len(inputs), len(outputs)) != wanted:
            msg = f"{len(inputs)} inputs and {len(outputs)} outputs are bound, not {wanted}"
            raise errors.evaluating(msg)
        sizes = [s.nbytes for s in inputs], [s.nbytes for s in outputs]
        made = Made(self.profile, Program("", (self._main,)), {}, *sizes)
        for rule, why in checks.violations(made, checks.INFERENCE):
            msg = "an evaluation failed"
            raise errors.evaluating(msg, str(rule), why)

    def _damaged(self, made: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """With the faults that were asked for."""
        if self.faults.hit("canary"):
            made = {name: -values for name, values in made.items()}
        if self.faults.hit("nan"):
            first = min(made)
            made[first] = np.full_like(made[first], np.nan)
        return made

    def _count(self, surfaces: Sequence[Surface]) -> None:
        assert self._main is not None
        assert self._estimate is not None
        written = sum(surface.dirty for surface in surfaces)
        for surface in surfaces:
            surface.dirty = False
        ms = self._estimate.ms + written * self.profile.costs.surface_ms
        self.clock.tick("evaluate", ms, self.hex_id)
        poison = [s.op for s in self._main.statements if s.op in self.profile.poisoned_by]
        PROCESS.poisoned = PROCESS.poisoned or "".join(poison[:1])

    def unload(self, qos: int = QOS) -> None:
        self._run = self._main = self._estimate = None

    def rewrite(self, path: str, data: bytes) -> None:
        self._stage()
        self.staged.rewrite(path, data)

    def attributes(self) -> Attributes:
        if self._main is None:
            raise errors.unloaded()
        sides = (tuple(name for name, _ in self._bound(side)) for side in ("inputs", "outputs"))
        return Attributes(*sides)

    def purge(self) -> None:
        self.store.purge(self.hex_id)

    def release(self) -> None:
        self.unload()
        self.staged.release()

    def _stage(self) -> None:
        if not self.staged.owns:
            self.staged.write(self.descriptor.text, self.descriptor.weights)


def _own(surfaces: Sequence[object]) -> list[Surface]:
    assert all(isinstance(surface, Surface) for surface in surfaces)
    return [surface for surface in surfaces if isinstance(surface, Surface)]


@lru_cache(maxsize=64)
def parsed(text: bytes) -> Program:
    try:
        return parse(text)
    except (MilError, UnicodeDecodeError) as error:
        msg = f"a compile failed: the text is no MIL program: {error}"
        raise errors.invalid(msg) from error

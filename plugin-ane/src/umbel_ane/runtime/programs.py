"""The programs of a device: compiled or found compiled, loaded, tried with a canary, shared.

A process may compile so many programs and no more; beyond that compiles fail without a word
(constraint 5). So they are counted, and refused before. What was compiled once is found again
by its identifier, in later processes too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import numpy as np
from umbel.errors import DeviceError

from umbel_ane.compiler import reference
from umbel_ane.compiler.ports import Port
from umbel_ane.compiler.programs import Compiled
from umbel_ane.drivers import AneError, Attributes, Driver, Model, Request
from umbel_ane.runtime import canary
from umbel_ane.runtime.canary import Verdict
from umbel_ane.runtime.child import Child
from umbel_ane.runtime.feeds import KINDS, nbytes
from umbel_ane.runtime.surfaces import Pool

log = logging.getLogger("umbel")

INFERENCE = 0x1D  # "Program Inference error": what an evaluation says of nearly everything
NOTICED = 1.0  # seconds
MOST = 119  # programs that a process can have loaded: others report 110 to 120


Fault = Callable[[], DeviceError]  # a new one each time: who raises it may add to it


@attrs.define(eq=False)
class Loaded:
    """A program that can be evaluated, and what became of it."""

    program: Compiled
    model: Model
    order: Attributes
    staged: tuple[str, ...]  # its weight files, as they were called at first
    fault: Fault | None = None  # it is not used any more
    dispatches: int = 0  # of steps: canaries are not counted

    @property
    def name(self) -> str:
        return self.program.name

    def evaluate(self, request: Request) -> None:
        """After a failed inference it is loaded anew, once; if that does not help, or it was
        another failure, the program is not used any more."""
        if self.fault is not None:
            raise self.fault()
        try:
            self.model.evaluate(request)
        except AneError as error:
            if error.code != INFERENCE:
                raise self._disabled(error) from error
            log.warning("%s is loaded again, after: %s", self.name, error.text or error.what)
            try:
                self.model.unload()
                self.model.load()
                self.model.evaluate(request)
            except AneError as again:
                raise self._disabled(again) from again

    def _disabled(self, error: AneError) -> DeviceError:
        msg = f"{self.name} failed on the Neural Engine, and is not used any more"
        do = "run `umbel doctor --device ane`, or take another device"
        self.fault = _fault(msg, self.program, error, do)
        return self.fault()


@attrs.define(eq=False)
class Programs:
    """Those of one device, by their identifiers."""

    device: str
    driver: Driver
    pool: Pool
    child: Child
    canaries: bool = True
    loaded: dict[bytes, Loaded] = attrs.field(factory=dict, init=False)
    verdicts: dict[bytes, Verdict] = attrs.field(factory=dict, init=False)
    _told: int = attrs.field(default=0, init=False)  # compiles that were announced
    _gone: int = attrs.field(default=0, init=False)  # dispatches of programs that were dropped
    _users: Counter[bytes] = attrs.field(factory=Counter, init=False)
    _faults: dict[bytes, Fault] = attrs.field(factory=dict, init=False)

    @property
    def room(self) -> int:
        """How many more can be loaded."""
        return (self.driver.profile.compile_limit or MOST) - len(self.loaded)

    def take(self, programs: Sequence[Compiled]) -> list[Loaded]:
        """All programs of a split, ready. Those that other splits have are shared: equal texts
        are equal programs, as they name the contents of their weights."""
        new = list({p.text: p for p in programs if p.text not in self.loaded}.values())
        try:
            for i, program in enumerate(new):
                self.loaded[program.text] = self._load(program, len(new) - i)
        except BaseException:
            self._drop_unused()
            raise
        self._users.update(p.text for p in programs)
        return [self.loaded[p.text] for p in programs]

    def give(self, programs: Sequence[Loaded]) -> None:
        """A split does not need them any more."""
        self._users.subtract(p.program.text for p in programs)
        self._drop_unused()

    def clear(self) -> None:
        self._users.clear()
        self._drop_unused()
        self.child.close()

    def counts(self) -> dict[str, object]:
        """What `status` tells; from any thread."""
        loaded, verdicts = list(self.loaded.values()), list(self.verdicts.values())
        limit = self.driver.profile.compile_limit
        failed = [str(v) for v in verdicts if not v.passed]
        faults = [p.fault().what for p in loaded if p.fault is not None]
        told: dict[str, object] = {
            "programs": len(loaded),
            "compiles": f"{self.driver.compiles} of {limit}" if limit else self.driver.compiles,
            "dispatches": self._gone + sum(p.dispatches for p in loaded),
            "canaries": f"{len(verdicts) - len(failed)} passed, {len(failed)} failed",
        }
        return told | ({"failed": "; ".join(failed + faults)} if failed + faults else {})

    def _drop_unused(self) -> None:
        for key in [key for key in self.loaded if self._users[key] <= 0]:
            gone = self.loaded.pop(key)
            self._users.pop(key, None)
            self.verdicts.pop(key, None)
            self._gone += gone.dispatches
            gone.model.release()

    def _load(self, program: Compiled, left: int) -> Loaded:
        """Compiled, if the system does not have it, loaded, and tried; `left` are the programs
        of the split from this one on."""
        if (fault := self._faults.get(program.text)) is not None:
            raise fault()
        model = self.driver.model(self.driver.descriptor(program.text, program.weights))
        try:
            return self._found(program, model) or self._made(program, model, left)
        except BaseException:
            model.release()
            raise

    def _found(self, program: Compiled, model: Model) -> Loaded | None:
        """As it was compiled before, by whichever process. What cannot be loaded, or computes
        something else, is dropped: another system or a broken file has left it."""
        if not model.compiled_exists():
            return None
        try:
            loaded = self._ready(program, model)
            verdict = self._try(loaded)
            if verdict is None or verdict.passed:
                return loaded
            why = str(verdict)
            model.unload()
        except AneError as error:
            why = error.text or error.what
        told = "%s was compiled before and cannot be used, so it is compiled anew: %s"
        log.warning(told, program.name, why)
        model.purge()
        return None

    def _made(self, program: Compiled, model: Model, left: int) -> Loaded:
        doing = "compiled"
        try:
            self._compile(program, model, left)
            doing = "loaded"
            loaded = self._ready(program, model)
            verdict = self._try(loaded)
        except AneError as error:
            msg = f"{program.name} cannot be {doing} for the Neural Engine"
            do = "take another device, and report it"
            self._faults[program.text] = fault = _fault(msg, program, error, do)
            raise fault() from error
        except OSError as error:
            msg = f"the files of {program.name} cannot be written"
            where, do = error.filename or program.where, "make room there, or set TMPDIR"
            raise DeviceError(msg, where=where, got=error.strerror, do=do) from error
        if verdict is not None and not verdict.passed:
            self._faults[program.text] = failed = _failed(program, verdict)
            raise failed()
        return loaded

    def _ready(self, program: Compiled, model: Model) -> Loaded:
        model.load()
        return Loaded(program, model, model.attributes(), tuple(program.weights))

    def _compile(self, program: Compiled, model: Model, left: int) -> None:
        """Here, or in another process where this one may not compile any more, or could crash:
        what was compiled there is found here."""
        limit, used = self.driver.profile.compile_limit, self.driver.compiles
        if self._told < used + left:
            self._tell(left, used)
            self._told = used + left
        log.info("%s has the compiler at work on %s", self.device, program.name)
        full = bool(limit) and used >= limit
        if not (full or self.driver.profile.may_crash):
            model.compile()
            return
        if full and not self.child.restarts:
            told = "%s has compiled %d programs: further ones are compiled in another process"
            log.warning(told, self.device, used)
        self.child.compile(program.name, program.text, program.weights)
        if not model.compiled_exists():
            msg = (
                f"{program.name} was compiled in another process, and is not found in this one"
            )
            raise AneError(msg, do="start again with a smaller --ctx or --ubatch")

    def _tell(self, left: int, used: int) -> None:
        """What is about to be compiled: the first time, and where one has to wait for it."""
        profile = self.driver.profile
        seconds = left * profile.costs.compile_ms / 1000
        loud = not self._told or seconds > NOTICED
        told = "%s compiles up to %d programs, in about %.1f s; %d of %s for a process are used"
        given = self.device, left, seconds, used, profile.compile_limit or "any number"
        log.log(logging.WARNING if loud else logging.INFO, told, *given)

    def _try(self, loaded: Loaded) -> Verdict | None:
        """What the canary says; None: it is off. What float16 makes of a program by itself, a
        quotient beyond its range, is no fault of the engine."""
        if not self.canaries:
            return None
        program, given = loaded.program, canary.inputs(loaded.program.inputs)
        got = self.evaluate(loaded, given)
        wanted = reference.evaluate(program.graph, given)
        verdict = canary.compare(program.name, got, wanted)
        if not verdict.passed:
            rounded = reference.evaluate(program.graph, given, "fp16")
            alike = canary.compare(program.name, got, rounded)
            verdict = alike if alike.passed else verdict
        self.verdicts[program.text] = verdict
        return verdict

    def rewrite(self, loaded: Loaded, fresh: Compiled) -> bool:
        """Overwrites its weight files with those of `fresh`, which is the same program, and
        loads it again: whether the canary then tells of the new weights.

        What is stale gives the old results bit for bit.
        """
        old, given, model = loaded.program, canary.inputs(fresh.inputs), loaded.model
        try:
            before, files = self.evaluate(loaded, given), fresh.weights
            model.unload()
            for path, data in zip(loaded.staged, files.values(), strict=True):
                model.rewrite(path, data)
            model.load()
            after = self.evaluate(loaded, given)
        except AneError as error:
            log.info("%s cannot be rewritten in place: %s", loaded.name, error.what)
            return False
        verdict = canary.compare(fresh.name, after, reference.evaluate(fresh.graph, given))
        stale = all(np.array_equal(after[name], before[name]) for name in before)
        if stale or not verdict.passed:
            return False
        self.loaded[fresh.text] = self.loaded.pop(old.text)
        self._users[fresh.text] = self._users.pop(old.text)
        self.verdicts[fresh.text] = verdict
        loaded.program = fresh
        return True

    def evaluate(self, loaded: Loaded, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One evaluation of a program by itself, in surfaces of its own."""
        program = loaded.program
        ports = {p.name: p for p in (*program.inputs, *program.outputs)}
        size = max(map(nbytes, ports.values()))
        surfaces = {name: self.pool.take(size) for name in ports}
        try:
            for name, values in given.items():
                with surfaces[name].lock() as memory:
                    _values(memory, ports[name])[...] = values
            inputs = [surfaces[name] for name in loaded.order.inputs]
            outputs = [surfaces[name] for name in loaded.order.outputs]
            loaded.evaluate(Request(inputs, outputs))
            found = {}
            for port in program.outputs:
                with surfaces[port.name].lock(read_only=True) as memory:
                    found[port.name] = _values(memory, port).copy()
            return found
        finally:
            self.pool.give(surfaces.values())


def _fault(msg: str, program: Compiled, error: AneError, do: str) -> Fault:
    """What a driver said, and of which nodes."""
    got = f"{error.what} ({error.got})" if error.got else error.what
    return partial(DeviceError, msg, where=program.where, got=got, do=do)


def _failed(program: Compiled, verdict: Verdict) -> Fault:
    """A canary that did not agree: the program is not used."""
    msg = f"the canary of {program.name} failed: the Neural Engine computes it wrongly"
    expected = f"squared error of {canary.LIMIT:.0e} at most"
    found = f"{verdict.error:.1e} of {verdict.output}, {verdict.worst}"
    do = "take another device; `-O ane.canary=off` runs it all the same"
    return partial(DeviceError, msg, where=program.where, do=do, expected=expected, got=found)


def _values(memory: np.ndarray, port: Port) -> np.ndarray:
    """A port's values: packed from byte 0."""
    made: np.ndarray = np.ndarray(port.shape, KINDS[port.dtype], memory)
    return made

"""A program's life: staged, compiled (or found compiled), loaded, evaluated, unloaded."""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet

import attrs

from umbel_ane.drivers import QOS, AneError, Attributes, Request
from umbel_ane.drivers.objc import encodings as m
from umbel_ane.drivers.objc.calls import Calls, Held
from umbel_ane.drivers.objc.encodings import Method
from umbel_ane.drivers.objc.staging import Staged
from umbel_ane.drivers.objc.surface import Surface
from umbel_ane.mil.parse import parse

RETRY = 0.1  # seconds after which a load is tried again, once (maderix/ANE does)
SUFFIX = "@output"  # of names of outputs, as the system has them
INPUTS, OUTPUTS = "kANEFModelInputSymbolsArrayKey", "kANEFModelOutputSymbolsArrayKey"
LIVE = {INPUTS: "LiveInputList", OUTPUTS: "LiveOutputList"}

log = logging.getLogger("umbel.ane")


class Process:
    """What is counted for the whole process."""

    compiles = 0


@attrs.define(eq=False)
class Descriptor:
    text: bytes
    weights: Mapping[str, bytes | memoryview]  # the object refers to these bytes
    hex_id: str
    object: Held

    @classmethod
    def of(
        cls, calls: Calls, text: bytes, weights: Mapping[str, bytes | memoryview]
    ) -> Descriptor:
        """The text becomes NSData and the weights a dictionary that is never nil: anything else
        ends the process, so it is refused here."""
        _require(text, bytes)
        _require(weights, Mapping)
        with calls.pool():
            offset = calls.number(0)
            files = {
                path: calls.dictionary({"offset": offset, "data": calls.shared_data(data)})
                for path, data in weights.items()
            }
            given = calls.data(text), calls.dictionary(files), 0
            made = calls.hold(calls.ask(m.make_descriptor, *given), "a descriptor")
            hex_id = calls.text(calls.send(made.address, m.descriptor_id))
        return cls(text, weights, hex_id, made)


@attrs.define(eq=False)
class Model:
    calls: Calls
    available: frozenset[Method]  # of those that a macOS may lack
    descriptor: Descriptor
    hex_id: str
    staged: Staged
    _object: Held
    _loaded: bool = False
    _requests: WeakKeyDictionary[Request, Held] = attrs.field(factory=WeakKeyDictionary)

    @classmethod
    def of(
        cls, calls: Calls, available: frozenset[Method], descriptor: Descriptor, root: Path
    ) -> Model:
        with calls.pool():
            found = calls.ask(m.make_model, descriptor.object.address)
            made = calls.hold(found, "a model")
            hex_id = calls.text(calls.send(made.address, m.model_id))
        if not hex_id or "/" in hex_id:
            msg = "the system gives a program no identifier that can name a folder"
            raise AneError(msg, domain="", text=hex_id)
        staged = Staged(root, hex_id)
        for path in descriptor.weights:
            staged.file(path)
        model = cls(calls, available, descriptor, hex_id, staged, made)
        _alive.add(model)
        return model

    def compiled_exists(self) -> bool:
        if m.compiled_exists not in self.available:
            return False
        with self._living() as model:
            return bool(self.calls.send(model, m.compiled_exists))

    def compile(self, qos: int = QOS) -> None:
        with self._living() as model:
            self._stage()
            Process.compiles += 1  # a failed one may count for the system too
            what = "a program cannot be compiled"
            self.calls.attempt(what, model, m.compile_, qos, self.calls.options)
            self.staged.mark_compiled()

    def load(self, qos: int = QOS) -> None:
        with self._living() as model:
            self._stage()
            given = "a program cannot be loaded", model, m.load, qos, self.calls.options
            try:
                self.calls.attempt(*given)
            except AneError as error:
                log.debug("a load failed and is tried again: %s", error)
                time.sleep(RETRY)
                self.calls.attempt(*given)
            self._loaded = True

    def evaluate(self, request: Request, qos: int = QOS) -> None:
        with self._living() as model:
            made = self._requests.get(request)
            if made is None:
                made = self._requests[request] = self._request(request)
            _surfaces((*request.inputs, *request.outputs))  # none was released since
            options, what = self.calls.options, "a program cannot be evaluated"
            self.calls.attempt(what, model, m.evaluate, qos, options, made.address)

    def _request(self, request: Request) -> Held:
        calls, given = self.calls, []
        for side in (request.inputs, request.outputs):
            given.append(calls.array([surface.object for surface in _surfaces(side)]))
            given.append(calls.array([calls.number(i) for i in range(len(side))]))
        procedure = calls.number(request.procedure)
        return calls.hold(calls.ask(m.make_request, *given, 0, 0, procedure), "a request")

    def unload(self, qos: int = QOS) -> None:
        if not self._loaded:
            return
        with self._living() as model:
            self._loaded = False
            self._requests.clear()
            self.calls.attempt("a program cannot be unloaded", model, m.unload, qos)

    def rewrite(self, path: str, data: bytes) -> None:
        if path not in self.descriptor.weights:
            msg = f"a program has no weight file {path}"
            raise AneError(msg, domain="", where=", ".join(self.descriptor.weights))
        self._stage()
        self.staged.rewrite(path, data)

    def attributes(self) -> Attributes:
        found = Attributes((), ())
        if m.attributes in self.available:
            with self._living() as model:
                told = self.calls.send(model, m.attributes)
                found = Attributes(self._names(told, INPUTS), self._names(told, OUTPUTS))
        if found.inputs and found.outputs:
            return found
        log.warning("the system does not tell a program's order of surfaces: sorted by name")
        main = parse(self.descriptor.text).main
        inputs = sorted(value.name for value in main.inputs)
        return Attributes(tuple(inputs), tuple(sorted(main.outputs)))

    def _names(self, told: int, key: str) -> tuple[str, ...]:
        """The symbols of the description, or the names in the list of what is alive."""
        if not told:
            return ()
        item, items = self.calls.item, self.calls.items
        described = item(told, "ANEFModelDescription")
        found = items(item(described, key) if described else item(told, key))
        if not found:
            networks = items(item(told, "NetworkStatusList"))
            found = [
                item(port, "Name") for n in networks[:1] for port in items(item(n, LIVE[key]))
            ]
        return tuple(self.calls.text(name).removesuffix(SUFFIX) for name in found)

    def purge(self) -> None:
        if m.purge in self.available:
            with self._living() as model:
                self.calls.send(model, m.purge)
        self.staged.unmark()

    def release(self) -> None:
        if not self._object.address:
            return
        try:
            self.unload()
        except AneError as error:
            log.warning("%s", str(error))  # a record lives on, and not with all of ours
        finally:
            self._requests.clear()
            self._object.release()
            self.staged.release()

    def _stage(self) -> None:
        """Again, where somebody has cleared the temporary folder; what was rewritten stays."""
        self.staged.stage(self.descriptor.text, self.descriptor.weights)

    @contextmanager
    def _living(self) -> Iterator[int]:
        if not self._object.address:
            msg = "a program is used after it was released"
            raise AneError(msg, domain="", do="this is a bug of Umbel: report it")
        with self.calls.pool():
            yield self._object.address

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.release()


_alive: WeakSet[Model] = WeakSet()


@atexit.register
def _release_all() -> None:
    """What a process left open: its files are as large as its weights."""
    for model in list(_alive):
        model.release()


def _require(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        msg = f"a program is made of its text (bytes) and a mapping, not {type(value).__name__}"
        raise TypeError(msg)


def _surfaces(given: Sequence[object]) -> list[Surface]:
    """Surfaces of this driver that are not released."""
    found = [surface for surface in given if isinstance(surface, Surface)]
    if len(found) != len(given):
        msg = "a surface of another driver is bound"
        raise TypeError(msg)
    for surface in found:
        assert surface.object
    return found

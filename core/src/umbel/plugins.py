"""Finds the backends that are installed, loads each by itself, and opens their devices.

A backend is an entry point of the group `umbel`; the entry's name is the backend's name. One
that cannot be used never disturbs the others: it becomes a `Fault`, which `umbel plugins` shows
and which is raised when the user asks for that backend by name. The built-in `host` backend
needs no entry point and cannot be replaced.

The environment variable `UMBEL_PLUGINS` limits loading to the names in it (`numa,cann`); empty,
it loads none but `host`. Importing this module loads no plugin.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from umbel import __version__
from umbel.backend import Backend, Fault, Source, bind, call_text, one_line, option_values
from umbel.errors import DeviceError, OptionError, PluginError, UmbelError
from umbel.gguf.types import BY_NAME
from umbel.hookspecs import GROUP, UMBEL_API, BufferType, Device, DeviceInfo

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Backend", "Fault", "OpenDevice", "Plugins", "Row", "get", "parse_options"]

VARIABLE = "UMBEL_PLUGINS"
HOST = Source("host", "built in")
AUTO = "auto"
TIME_LIMIT = 5.0  # seconds for `devices()`, which should take milliseconds

Options = Mapping[str, Mapping[str, object]]


@attrs.frozen(eq=False)
class OpenDevice:
    """A device that is ready to compute, with what its owner told of it."""

    device: Device
    info: DeviceInfo
    backend: Backend
    buffer_type: BufferType
    options: Mapping[str, object]
    lock: threading.RLock = attrs.field(factory=threading.RLock)  # whoever computes holds it


@attrs.frozen
class Row:
    """A line of `umbel plugins`."""

    name: str
    distribution: str
    version: str
    state: str  # "ok" or "FAILED"
    reason: str
    devices: tuple[str, ...]


class Plugins:
    """The backends of a process, their devices and their faults.

    `only` names the plugins to load, as the environment variable does. `time_limit` (seconds)
    is what the `devices()` of one plugin may take.
    """

    def __init__(self, only: str | None = None, time_limit: float = TIME_LIMIT) -> None:
        self.backends: dict[str, Backend] = {}
        self._only = only
        self._time_limit = time_limit
        self._faults: dict[tuple[Source, str], Fault] = {}
        self._devices: list[Device] | None = None
        self._open: dict[str, OpenDevice] = {}
        self._loaded = False
        self._lock = threading.RLock()

    @property
    def faults(self) -> list[Fault]:
        """What went wrong so far: the first fault of each plugin and occasion."""
        return list(self._faults.values())

    def load(self) -> None:
        """Loads every plugin that is installed; the second time, nothing happens."""
        with self._lock:
            if self._loaded:
                return
            self._loaded = True  # first: a plugin may come here while it is imported
            try:
                self._load(HOST, "umbel.host", partial(importlib.import_module, "umbel.host"))
                self._load_installed()
            except BaseException:  # Ctrl-C: the rest is still to be loaded
                self._loaded = False
                raise

    def add(self, name: str, plugin: object, distribution: str = "", version: str = "") -> None:
        """Takes in one plugin object; a `PluginError` says why it cannot be used."""
        source = Source(name, distribution, version)
        with self._lock:
            known = self.backends.get(name)
            if known is None or known.plugin is not plugin:
                self._check(source, plugin)
                self.backends[name] = bind(source, plugin, self._record)
                self._devices = None

    def ask(self, hook: str, *args: Any) -> list[tuple[Backend, Any]]:
        """The answers of all backends to one hook; one that fails gets a fault instead."""
        self.load()
        answers = []
        for backend in list(self.backends.values()):
            try:
                answers.append((backend, getattr(backend, hook)(*args)))
            except UmbelError as error:
                self._record(backend.source, call_text(hook, args), error)
        return answers

    def devices(self) -> list[Device]:
        """All devices, the best one first."""
        self.load()
        with self._lock:
            if self._devices is None:
                found = [d for b in list(self.backends.values()) for d in self._devices_of(b)]
                self._devices = sorted(found, key=lambda d: (-d.priority, d.backend, d.index))
            return list(self._devices)

    def find(self, name: str = AUTO) -> Device:
        """The device of that name; `auto` is the best real one, never a simulated one."""
        devices = self.devices()
        wanted = name if ":" in name else f"{name}:0"
        for device in devices:
            if device.name == wanted or (name == AUTO and not device.simulated):
                return device
        backend = name.partition(":")[0]
        siblings = [d.name for d in devices if d.backend == backend]
        if not siblings:
            self._raise_fault_of(backend)
        msg = "there is no real device" if name == AUTO else f"there is no device {name!r}"
        there = ", ".join(siblings or [d.name for d in devices])
        do = "`umbel plugins` tells what is installed, and what failed"
        raise DeviceError(msg, expected=there or "no device is here at all", do=do)

    def owner(self, device: Device) -> Backend:
        """The backend that a device belongs to."""
        return self._backend(device.backend, DeviceError)

    def open(self, device: Device, options: Options | None = None) -> OpenDevice:
        """The device made ready, once; options that are given later must agree."""
        backend = self.owner(device)
        given = {name: dict(values) for name, values in (options or {}).items()}
        mine = given.setdefault(backend.name, {})
        checked = {n: option_values(self._backend(n, OptionError), g) for n, g in given.items()}
        values = checked[backend.name]
        with self._lock:
            known = self._open.get(device.name)
            if known is None:
                with redirect_stdout(sys.stderr):
                    known = self._open_now(backend, device, values)
                self._open[device.name] = known
            for name in mine:
                if known.options[name] != values[name]:
                    msg = f"{device.name} is already open with another {backend.name}.{name}"
                    raise OptionError(msg, expected=known.options[name], got=values[name])
            return known

    def close(self) -> None:
        """Closes every open device, each when its computation is done."""
        with self._lock:
            while self._open:
                device, opened = self._open.popitem()
                try:
                    with opened.lock:
                        opened.backend.close(opened.device)
                except UmbelError as error:
                    self._record(opened.backend.source, f"close({device})", error)

    def describe(self) -> list[Row]:
        """A row for each plugin, loaded or failed."""
        devices = self.devices()
        loaded = [backend.source for backend in self.backends.values()]
        rows = []
        for source in dict.fromkeys([*loaded, *(f.source for f in self.faults)]):
            name, distribution, version = source.name, source.distribution, source.version
            reason = "; ".join(f.reason for f in self.faults if f.source == source)
            names = tuple(d.name for d in devices if source in loaded and d.backend == name)
            state = "FAILED" if reason else "ok"
            rows.append(Row(name, distribution, version, state, reason, names))
        return rows

    def _load_installed(self) -> None:
        offers: dict[str, list[tuple[Source, EntryPoint]]] = {}
        for source, entry in self._installed():
            offers.setdefault(source.name, []).append((source, entry))
        limit = os.environ.get(VARIABLE) if self._only is None else self._only
        if limit is not None:
            only = {name.strip() for name in limit.split(",")} - {"", HOST.name}
            offers = {name: offers.get(name, []) for name in only}
        for name, found in sorted(offers.items()):
            sources = [source for source, _ in found] + [HOST] * (name == HOST.name)
            if not sources:
                error = PluginError("no installed distribution offers it")
                self._record(Source(name, "not installed"), VARIABLE, error)
            for source, entry in found:
                if len(sources) > 1:  # none of them: chance would decide which one runs
                    who = " and ".join(map(str, sources))
                    error = PluginError(f"{who} both offer {name!r}; uninstall one")
                    self._record(source, f"{name} = {entry.value}", error)
                else:
                    self._load(source, f"{name} = {entry.value}", entry.load)

    def _installed(self) -> Iterator[tuple[Source, EntryPoint]]:
        """The entry points of our group; a distribution that is found twice counts once."""
        from importlib import metadata  # costs 25 ms

        seen: set[str] = set()
        for found in metadata.distributions():
            folder = getattr(getattr(found, "_path", None), "name", "unknown")
            try:
                if f"[{GROUP}]" not in (found.read_text("entry_points.txt") or ""):
                    continue
                name = found.metadata["Name"] or folder
                version = found.metadata["Version"] or ""
                entries = found.entry_points.select(group=GROUP)
            except Exception as error:
                self._record(Source(folder, folder), "entry_points.txt", error)
                continue
            if name not in seen:
                yield from ((Source(entry.name, name, version), entry) for entry in entries)
            seen.add(name)

    def _load(self, source: Source, occasion: str, load: Callable[[], object]) -> None:
        try:
            with redirect_stdout(sys.stderr):
                plugin = load()
                self.add(source.name, plugin, source.distribution, source.version)
        except (Exception, SystemExit) as error:
            self._record(source, occasion, error)

    def _check(self, source: Source, plugin: object) -> None:
        name = source.name
        twins = [b.name for b in self.backends.values() if b.plugin is plugin]
        api = getattr(plugin, "UMBEL_API", None)
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or name == AUTO:
            msg = f"{name!r} cannot be the name of a backend"
        elif name in self.backends:
            msg = f"{self.backends[name].source} is loaded as {name!r} already"
        elif twins:
            msg = f"the same plugin is loaded as {twins[0]!r} already"
        elif api != UMBEL_API:
            told = "no UMBEL_API" if api is None else f"UMBEL_API {api!r}"
            msg = f"it declares {told}; Umbel {__version__} needs UMBEL_API {UMBEL_API}"
        else:
            return
        raise PluginError(msg, where=source)

    def _backend(self, name: str, kind: type[UmbelError]) -> Backend:
        self.load()
        if name not in self.backends:
            self._raise_fault_of(name)
            msg = f"there is no backend {name!r}"
            raise kind(msg, expected=", ".join(self.backends))
        return self.backends[name]

    def _devices_of(self, backend: Backend) -> Sequence[Device]:
        try:
            devices = _within(self._time_limit, backend.devices)
            _check_names(backend, devices)
        except UmbelError as error:
            self._record(backend.source, "devices()", error)
            return ()
        return devices

    def _open_now(
        self, backend: Backend, device: Device, values: Mapping[str, object]
    ) -> OpenDevice:
        answers = self.ask("kernels", device)
        kernels = [k for other, brought in answers if other is not backend for k in brought]
        info = backend.open(device, values, kernels)
        try:
            if info.compute_dtype not in BY_NAME:
                msg = f"{device.name} computes in {info.compute_dtype!r}, which is no dtype"
                raise PluginError(msg, where=backend.source)
            return OpenDevice(device, info, backend, backend.buffer_type(device), values)
        except BaseException:
            with suppress(UmbelError):
                backend.close(device)
            raise

    def _record(self, source: Source, occasion: str, error: BaseException) -> None:
        """Keeps the first fault of an occasion: a step that fails may be tried for ever."""
        if (source, occasion) not in self._faults:
            reason = f"{occasion}: {one_line(error)}"
            detail = "".join(traceback.format_exception(error))
            fault = Fault(source.name, source.distribution, source.version, reason, detail)
            self._faults[source, occasion] = fault

    def _raise_fault_of(self, name: str) -> None:
        for fault in self.faults:
            if fault.name == name:
                raise fault.error()


def _within(seconds: float, call: Callable[[], Sequence[Device]]) -> Sequence[Device]:
    """The answer, unless it takes too long; what is printed meanwhile goes to stderr."""
    from concurrent import futures

    answer: futures.Future[Sequence[Device]] = futures.Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # Ctrl-C too: it belongs to the caller's thread
            answer.set_exception(error)

    with redirect_stdout(sys.stderr):
        threading.Thread(target=run, daemon=True).start()
        try:
            return answer.result(seconds)
        except futures.TimeoutError as error:
            msg = f"no answer within {seconds:g} s"
            raise PluginError(msg) from error


def _check_names(backend: Backend, devices: Sequence[Device]) -> None:
    names = [str(device.name) for device in devices]
    good = [n for n in names if re.fullmatch(rf"{backend.name}:(0|[1-9][0-9]*)", n)]
    whole = all(isinstance(device.priority, int) for device in devices)
    if len(set(good)) < len(names) or not whole:
        told = ", ".join(f"{device.name!r} ({device.priority!r})" for device in devices)
        wanted = f"names like '{backend.name}:0', each once, and whole priorities"
        msg = f"its devices need {wanted}; it told {told}"
        raise PluginError(msg, where=backend.source)


def parse_options(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Options of backends as the command line gives them: `["numa.mode=mirror"]`."""
    options: dict[str, dict[str, str]] = {}
    for text in texts:
        match = re.fullmatch(r"([a-z][a-z0-9_-]*)\.([A-Za-z0-9_-]+)=(.*)", text, re.DOTALL)
        if match is None:
            msg = f"this is no option of a backend: {text!r}"
            raise OptionError(msg, where="-O", expected="backend.name=value", got=text)
        backend, name, value = match.groups()
        if options.setdefault(backend, {}).setdefault(name, value) != value:
            msg = f"the option {backend}.{name} is given twice"
            raise OptionError(msg, where="-O", got=f"{options[backend][name]} and {value}")
    return options


_process = Plugins()


def get() -> Plugins:
    """The plugins of this process."""
    return _process

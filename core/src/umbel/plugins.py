"""Finds the backends that are installed, loads each by itself, and opens their devices.

A backend is an entry point of the group `umbel`; the entry's name is the backend's name. One
that cannot be used never disturbs the others: it becomes a `Fault`, which `umbel plugins` shows
and which is raised when the user asks for that backend by name. The built-in `host` backend
needs no entry point and cannot be replaced.

The environment variable `UMBEL_PLUGINS` limits loading to the names in it (`one,two`); empty,
it loads none but `host`. Importing this module loads no plugin.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import attrs

from umbel.backend import Backend, Fault, Source, bind, call_text, one_line, option_values
from umbel.errors import DeviceError, OptionError, PluginError, UmbelError
from umbel.hookspecs import GROUP, BufferType, Device, DeviceInfo

VARIABLE = "UMBEL_PLUGINS"
HOST = Source("host", "built in")
AUTO = "auto"
TIME_LIMIT = 5.0  # seconds for the `devices()` of one plugin, which should take milliseconds

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

    `only` names the plugins to load, as the environment variable does.
    """

    def __init__(self, only: str | None = None) -> None:
        self.backends: dict[str, Backend] = {}
        self._only = only
        self._faults: dict[tuple[Source, str], Fault] = {}
        self._devices: list[Device] | None = None
        self._open: dict[str, OpenDevice] = {}
        self._loaded = False
        self._lock = threading.RLock()

    @property
    def faults(self) -> list[Fault]:
        """What went wrong so far: the first fault of each plugin and occasion."""
        return list(self._faults.values())

    def faults_in(self, *occasions: str) -> list[Fault]:
        """The faults of those occasions: `ops()`."""
        return [f for (_, occasion), f in self._faults.items() if occasion in occasions]

    def load(self) -> None:
        """Loads every plugin that is installed; the second time, nothing happens."""
        with self._lock:
            if not self._loaded:
                self._loaded = True  # first: a plugin may come here while it is imported
                self._load_all()

    def add(self, name: str, plugin: object, distribution: str = "", version: str = "") -> None:
        """Takes in one plugin object; a `PluginError` says why it cannot be used."""
        source = Source(name, distribution, version)
        with self._lock:
            known = self.backends.get(name)
            if known is None:
                self.backends[name] = bind(source, plugin, self.record)
                self._devices = None
            elif known.plugin is not plugin:
                msg = f"{known.source} is loaded as {name!r} already"
                raise PluginError(msg, where=source)

    def ask(self, hook: str, *args: Any) -> list[tuple[Backend, Any]]:
        """The answers of all backends to one hook; one that fails gets a fault instead."""
        self.load()
        answers = [(b, self._answer(b, hook, *args)) for b in list(self.backends.values())]
        return [(backend, answer) for backend, answer in answers if answer is not None]

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
        for device in devices:
            if device.name in (name, f"{name}:0") or (name == AUTO and not device.simulated):
                return device
        self._raise_fault_of(name.partition(":")[0])
        msg = "there is no real device" if name == AUTO else f"there is no device {name!r}"
        do = "`umbel plugins` tells what is installed, and what failed"
        raise DeviceError(msg, expected=", ".join(d.name for d in devices) or None, do=do)

    def owner(self, device: Device) -> Backend:
        """The backend that a device belongs to."""
        return self.backends[device.backend]

    def open(self, device: Device, options: Options | None = None) -> OpenDevice:
        """The device made ready, once; options that are given later must agree."""
        backend = self.owner(device)
        given = {backend.name: {}, **(options or {})}
        values = {name: self._option_values(name, given[name]) for name in given}[backend.name]
        with self._lock:
            if device.name not in self._open:
                answers = self.ask("kernels", device)
                kernels = [k for b, brought in answers if b is not backend for k in brought]
                with redirect_stdout(sys.stderr):
                    info = backend.open(device, values, kernels)
                    memory = backend.buffer_type(device)
                self._open[device.name] = OpenDevice(device, info, backend, memory, values)
            opened = self._open[device.name]
            for name in given[backend.name]:
                if opened.options[name] != values[name]:
                    msg = f"{device.name} is already open with another {backend.name}.{name}"
                    do = "close all models and call `umbel.plugins.get().close()` first"
                    raise OptionError(
                        msg, expected=opened.options[name], got=values[name], do=do
                    )
            return opened

    def close(self) -> None:
        """Closes every open device, each when its computation is done."""
        with self._lock:
            while self._open:
                _, opened = self._open.popitem()
                with opened.lock:
                    self._answer(opened.backend, "close", opened.device)

    def describe(self) -> list[Row]:
        """A row for each plugin, loaded or failed."""
        devices = self.devices()
        loaded = [backend.source for backend in self.backends.values()]
        rows = []
        for s in dict.fromkeys([*loaded, *(f.source for f in self.faults)]):
            names = tuple(d.name for d in devices if d.backend == s.name and s in loaded)
            reason = "; ".join(f.reason for f in self.faults if f.source == s)
            state = "FAILED" if reason else "ok"
            rows.append(Row(s.name, s.distribution, s.version, state, reason, names))
        return rows

    def _load_all(self) -> None:
        offers = self._offers()
        limit = os.environ.get(VARIABLE) if self._only is None else self._only
        if limit is not None:
            names = {HOST.name, *(name.strip() for name in limit.split(","))} - {""}
            offers = {name: offers.get(name, {}) for name in names}
        for name in sorted(offers, key=lambda name: (name != HOST.name, name)):
            found = offers[name]
            rivals = " and ".join(str(source) for source, _ in found.values())
            if not found:
                error = PluginError("no installed distribution offers it")
                self.record(Source(name, "not installed"), VARIABLE, error)
            for source, entry in found.values():
                try:
                    if len(found) > 1 and source is not HOST:
                        msg = f"{rivals} both offer {name!r}; uninstall one"
                        raise PluginError(msg)  # else chance would decide which one runs
                    with redirect_stdout(sys.stderr):
                        self.add(name, entry.load(), source.distribution, source.version)
                except (Exception, SystemExit) as error:
                    self.record(source, f"{name} = {entry.value}", error)
                except KeyboardInterrupt:
                    self._loaded = False  # the rest is still to be loaded
                    raise

    def _offers(self) -> dict[str, dict[str, tuple[Source, Any]]]:
        """By backend: its entry points, by distribution, which may be found twice."""
        from importlib import metadata  # costs 25 ms

        offers: dict[str, dict[str, tuple[Source, Any]]] = {}
        for found in metadata.distributions():
            folder = getattr(getattr(found, "_path", None), "name", "unknown")
            try:
                if f"[{GROUP}]" not in (found.read_text("entry_points.txt") or ""):
                    continue
                name, version = found.metadata["Name"] or folder, found.metadata["Version"]
                for entry in found.entry_points.select(group=GROUP):
                    offer = Source(entry.name, name, version or ""), entry
                    offers.setdefault(entry.name, {}).setdefault(name, offer)
            except Exception as error:
                self.record(Source(folder, folder), "entry_points.txt", error)
        host = HOST, metadata.EntryPoint(HOST.name, "umbel.host", GROUP)
        offers.setdefault(HOST.name, {})[HOST.distribution] = host
        return offers

    def _answer(self, backend: Backend, hook: str, *args: Any) -> Any:
        """The answer to one hook; None, and a fault, where it fails."""
        try:
            return getattr(backend, hook)(*args)
        except UmbelError as error:
            self.record(backend.source, call_text(hook, args), error)
            return None

    def _devices_of(self, backend: Backend) -> Sequence[Device]:
        """What the backend tells in time: in a thread, as its answer may never come."""
        found: list[Device] = []

        def ask() -> None:
            found.extend(self._answer(backend, "devices") or ())

        thread = threading.Thread(target=ask, daemon=True)
        with redirect_stdout(sys.stderr):
            thread.start()
            thread.join(TIME_LIMIT)
        names = {str(d.name) for d in found if isinstance(d.priority, int)}
        index = rf"{re.escape(backend.name)}:(0|[1-9][0-9]*)"
        if thread.is_alive():
            msg = f"no answer within {TIME_LIMIT:g} s"
        elif len(names) < len(found) or not all(re.fullmatch(index, name) for name in names):
            msg = f"devices need unique names '{backend.name}:N' and whole priorities: {found}"
        else:
            return tuple(found)
        self.record(backend.source, "devices()", PluginError(msg))
        return ()

    def _option_values(self, name: str, given: Mapping[str, object]) -> dict[str, object]:
        if name not in self.backends:
            self._raise_fault_of(name)
            msg = f"there is no backend {name!r}"
            raise OptionError(msg, expected=", ".join(self.backends))
        return option_values(self.backends[name], given)

    def record(self, source: Source, occasion: str, error: BaseException) -> None:
        """Keeps the first fault of an occasion: a step that fails may be tried for ever."""
        reason = f"{occasion}: {one_line(error)}"
        detail = "".join(traceback.format_exception(error))
        self._faults.setdefault((source, occasion), Fault(source, reason, detail))

    def _raise_fault_of(self, name: str) -> None:
        for fault in self.faults:
            if fault.name == name:
                raise fault.error()


def parse_options(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Options of backends as the command line gives them: `["host.memory=2G"]`.

    Of two values for one option the last counts, as on any command line.
    """
    options: dict[str, dict[str, str]] = {}
    for text in texts:
        match = re.fullmatch(r"([a-z][a-z0-9_-]*)\.([A-Za-z0-9_-]+)=(.*)", text, re.DOTALL)
        if match is None:
            msg = f"this is no option of a backend: {text!r}"
            raise OptionError(msg, where="-O", expected="backend.name=value", got=text)
        backend, name, value = match.groups()
        options.setdefault(backend, {})[name] = value
    return options


_process = Plugins()


def get() -> Plugins:
    """The plugins of this process."""
    return _process

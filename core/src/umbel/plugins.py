"""Finds the backends that are installed, loads each by itself, and opens their devices.

A backend is an entry point of the group `umbel`; the entry's name is the backend's name. One
that cannot be used never disturbs the others: it becomes a `Fault`, which `umbel plugins` shows
and which is raised when the user asks for that backend by name. The built-in `host` backend
needs no entry point and cannot be replaced.

The environment variable `UMBEL_PLUGINS` limits loading to the names in it (`one,two`); empty,
it loads none but `host`. Importing this module loads no plugin.
"""

import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from typing import Any

from umbel.backend import Backend, Fault, Memory, Source, bind, call_text, one_line
from umbel.errors import DeviceError, OptionError, PluginError, UmbelError
from umbel.hookspecs import GROUP, Device, Option
from umbel.plan import Target

VARIABLE = "UMBEL_PLUGINS"
HOST = Source("host", "built in")
AUTO = "auto"
TIME_LIMIT = 5.0  # seconds for the `devices()` of one plugin, which should take milliseconds

Options = Mapping[str, Mapping[str, object]]


class Plugins:
    """The backends of a process, their devices and their faults.

    `only` names the plugins to load, as the environment variable does.
    """

    def __init__(self, only: str | None = None) -> None:
        self.backends: dict[str, Backend] = {}
        self._only = only
        self.faults: list[Fault] = []  # the first one of each plugin and occasion
        self._devices: list[Device] | None = None
        self._open: dict[str, tuple[Target, Mapping[str, object]]] = {}  # and its options
        self._loaded = False
        self._lock = threading.RLock()

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

    def refuse(self, backend: Backend, occasion: str, error: UmbelError) -> None:
        """Takes out a plugin that turned out to be unusable."""
        with self._lock:
            self.record(backend.source, occasion, error)
            self.backends.pop(backend.name, None)
            self._devices = None

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
                answers = (
                    self.in_time(backend, "devices", TIME_LIMIT) or ()
                    for backend in list(self.backends.values())
                )
                found = [device for devices in answers for device in devices]
                self._devices = sorted(found, key=lambda d: (-d.priority, d.backend, d.index))
            return list(self._devices)

    def find(self, name: str = AUTO) -> Device:
        """The device of that name; `auto` is the best real one, never a simulated one."""
        devices = self.devices()
        for device in devices:
            if device.name in (name, f"{name}:0") or (name == AUTO and not device.simulated):
                return device
        self.raise_fault_of(name.partition(":")[0])
        msg = "there is no real device" if name == AUTO else f"there is no device {name!r}"
        do = "`umbel plugins` tells what is installed, and what failed"
        raise DeviceError(msg, expected=", ".join(d.name for d in devices) or None, do=do)

    def open(self, device: Device, options: Options | None = None) -> Target:
        """The device made ready, once; options that are given later must agree."""
        owner = device.backend
        given = {owner: {}, **(options or {})}
        values = {name: self.option_values(name, given[name]) for name in given}[owner]
        with self._lock:
            if device.name not in self._open:
                self._open[device.name] = self._target(device, values), values
            target, before = self._open[device.name]
            for name in given[owner]:
                if before[name] != values[name]:
                    msg = f"{device.name} is already open with another {owner}.{name}"
                    do = "close all models and call `umbel.plugins.get().close()` first"
                    raise OptionError(msg, expected=before[name], got=values[name], do=do)
            return target

    def _target(self, device: Device, options: Mapping[str, object]) -> Target:
        backend = self.backends[device.backend]
        answers = self.ask("kernels", device)
        kernels = [k for b, brought in answers if b is not backend for k in brought]
        with redirect_stdout(sys.stderr):
            info = backend.open(device, options, kernels)
            lock = threading.RLock()
            memory: Any = Memory(backend.buffer_type(device), device, lock)
        return Target(device, info, memory, backend, lock)

    def close(self) -> None:
        """Closes every open device, each when its computation is done."""
        with self._lock:
            while self._open:
                _, (target, _) = self._open.popitem()
                with target.lock:
                    self._answer(target.hooks, "close", target.device)

    def describe(self) -> list[tuple[Source, str, list[str]]]:
        """Every plugin, why it failed (empty if it did not), and its devices."""
        devices = self.devices()
        sources = [backend.source for backend in self.backends.values()]
        rows = []
        for source in dict.fromkeys([*sources, *(fault.source for fault in self.faults)]):
            reason = "; ".join(f.reason for f in self.faults if f.source == source)
            owned = [d.name for d in devices if self.backends[d.backend].source == source]
            rows.append((source, reason, owned))
        return rows

    def _load_all(self) -> None:
        offers = self._offers()
        limit = os.environ.get(VARIABLE) if self._only is None else self._only
        if limit is not None:
            wanted = {HOST.name, *(name.strip() for name in limit.split(","))} - {""}
            for name in sorted(wanted - {source.name for source in offers}):
                error = PluginError("no installed distribution offers it")
                self.record(Source(name, "not installed"), VARIABLE, error)
            offers = {source: offers[source] for source in offers if source.name in wanted}
        for source, entry in offers.items():
            rivals = [str(rival) for rival in offers if rival.name == source.name]
            try:
                if len(rivals) > 1 and source is not HOST:
                    msg = f"{' and '.join(rivals)} both offer {source.name!r}; uninstall one"
                    raise PluginError(msg)  # else chance would decide which one runs
                with redirect_stdout(sys.stderr):
                    self.add(source.name, entry.load(), source.distribution, source.version)
            except (Exception, SystemExit) as error:
                self.record(source, f"{source.name} = {entry.value}", error)
            except KeyboardInterrupt:
                self._loaded = False  # the rest is still to be loaded
                raise

    def _offers(self) -> dict[Source, Any]:
        """All entry points, the host's first; a distribution may be found twice."""
        from importlib import metadata  # costs 25 ms

        offers = {HOST: metadata.EntryPoint(HOST.name, "umbel.host", GROUP)}
        for found in metadata.distributions():
            folder = getattr(getattr(found, "_path", None), "name", "unknown")
            try:
                if f"[{GROUP}]" not in (found.read_text("entry_points.txt") or ""):
                    continue
                name, version = found.metadata["Name"] or folder, found.metadata["Version"]
                for entry in found.entry_points.select(group=GROUP):
                    offers.setdefault(Source(entry.name, name, version or ""), entry)
            except Exception as error:
                self.record(Source(folder, folder), "entry_points.txt", error)
        order = sorted(offers, key=lambda source: (source is not HOST, source.name))
        return {source: offers[source] for source in order}

    def _answer(self, backend: Backend, hook: str, *args: Any) -> Any:
        """The answer to one hook; None, and a fault, where it fails."""
        try:
            return getattr(backend, hook)(*args)
        except UmbelError as error:
            self.record(backend.source, call_text(hook, args), error)
            return None

    def in_time(self, backend: Backend, hook: str, limit: float) -> Any:
        """What a hook answers in so many seconds, or None: in a thread, as it may never do."""
        answers: list[Any] = []

        def ask() -> None:
            answers.append(self._answer(backend, hook))

        thread = threading.Thread(target=ask, daemon=True)
        with redirect_stdout(sys.stderr):
            thread.start()
            thread.join(limit)
        if not answers:
            error = PluginError(f"no answer within {limit:g} s")
            self.record(backend.source, f"{hook}()", error)
        return answers[0] if answers else None

    def option_values(self, backend: str, given: Mapping[str, object]) -> dict[str, object]:
        """What `open` gets: every option that the backend declares, as given or by default.

        A value from Python goes the way of one from the command line, by its text.
        """
        if backend not in self.backends:
            self.raise_fault_of(backend)
            msg = f"there is no backend {backend!r}"
            raise OptionError(msg, expected=", ".join(self.backends))
        known: dict[str, Option] = {o.name: o for o in self.backends[backend].options()}
        values = {name: option.default for name, option in known.items()}
        for name, value in given.items():
            if name not in known:
                msg = f"the backend {backend!r} has no option {name!r}"
                expected = ", ".join(known) or "no option at all"
                raise OptionError(msg, expected=expected, got=name)
            option = known[name]
            text = str(value).lower() if isinstance(value, bool) else str(value)
            msg = f"the option {backend}.{name} cannot be {text!r}"
            if option.choices and text not in option.choices:
                raise OptionError(msg, expected=", ".join(option.choices), got=text)
            try:
                values[name] = option.parse(text)
            except ValueError as error:
                raise OptionError(msg, expected=option.help, got=text) from error
            except Exception as error:
                raise OptionError(msg, expected=option.help, got=one_line(error)) from error
        return values

    def record(self, source: Source, occasion: str, error: BaseException) -> None:
        """Keeps the first fault of an occasion: a step that fails may be tried for ever."""
        if all((f.source, f.occasion) != (source, occasion) for f in self.faults):
            detail = "".join(traceback.format_exception(error))
            reason = f"{occasion}: {one_line(error)}"
            self.faults.append(Fault(source, occasion, reason, detail))

    def raise_fault_of(self, name: str) -> None:
        """Tells who named a plugin why it cannot be used, where there is a reason."""
        for fault in self.faults:
            if fault.source.name == name:
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

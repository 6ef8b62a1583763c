"""One backend as the core calls it: its hooks bound once, every call guarded and checked.

pluggy finds the hooks and validates them; it takes no part in calling them: a call through it
costs ten direct ones and asks everybody, where a device's questions go to its owner alone.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import pluggy

from umbel import __version__, hookspecs
from umbel.errors import DeviceError, OptionError, OutOfMemoryError, PluginError, UmbelError
from umbel.graph import Operation
from umbel.hookspecs import UMBEL_API, BufferType, Device, DeviceInfo, Kernel, Option

_OF_A_DEVICE = ("devices", "open", "buffer_type", "op_supported", "graph_compute")
_ANSWERS: Mapping[str, Any] = {  # what a hook must return: [X] is a list of X; else nothing
    "devices": [Device],
    "open": DeviceInfo,
    "buffer_type": BufferType,
    "op_supported": str | None,
    "options": [Option],
    "status": Mapping,
    "doctor": [str],
    "ops": [Operation],
    "architectures": [object],
    "kernels": [Kernel],
}


def _sizes(value: object) -> bool:
    return isinstance(value, tuple) and all(type(n) is int and n > 0 for n in value)


_VALUES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {  # of a device: what they must be
    "compute_dtype": ("f32, f16 or bf16", lambda v: v in ("f32", "f16", "bf16")),
    "token_buckets": ("a tuple of positive whole numbers", _sizes),
    "length_buckets": ("a tuple of positive whole numbers", _sizes),
    "alignment": ("a positive whole number", lambda v: _sizes((v,))),
}


@attrs.frozen
class Source:
    """Where a backend comes from."""

    name: str  # of the backend
    distribution: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip() or self.name


@attrs.frozen
class Fault:
    """Why a plugin, or one hook of it, cannot be used."""

    source: Source
    reason: str  # one line
    detail: str = attrs.field(repr=False)  # the traceback

    @property
    def name(self) -> str:
        return self.source.name

    def error(self) -> PluginError:
        """The same, to be raised where the user asked for this plugin by name."""
        msg = f"the plugin {self.name!r} cannot be used: {self.reason}"
        do = "mend, update or uninstall it; `umbel plugins` lists all plugins"
        return PluginError(msg, where=self.source, do=do)


Record = Callable[[Source, str, BaseException], None]  # of a fault: whose, where, what


@attrs.frozen(eq=False, repr=False)
class Backend:
    """A loaded backend. Its hooks are its attributes, called by position: `open(device, ...)`.

    Whatever a hook raises arrives as an `UmbelError` that names plugin, hook and device. A
    plugin that only brings operations, models or kernels needs none of the hooks for devices.
    """

    source: Source
    plugin: object
    hooks: Mapping[str, Callable[..., Any]]

    def __getattr__(self, hook: str) -> Callable[..., Any]:
        return self.hooks[hook]

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def distribution(self) -> str:
        """Name and version of the distribution that brought it, or "built in"."""
        return str(self.source)


def bind(source: Source, plugin: object, record: Record) -> Backend:
    """The backend that a plugin object implements; faults of its hooks go to `record`."""
    api = getattr(plugin, "UMBEL_API", None)
    if api != UMBEL_API:
        told = "no UMBEL_API" if api is None else f"UMBEL_API {api!r}"
        msg = f"it declares {told}; Umbel {__version__} needs UMBEL_API {UMBEL_API}"
        raise PluginError(msg, where=source)
    manager = pluggy.PluginManager(hookspecs.GROUP)  # of its own: a fault leaves nothing behind
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, source.name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(" ".join(str(error).split()), where=source) from error
    callers = vars(manager.hook)
    lacking = [hook for hook in _OF_A_DEVICE if not callers[hook].get_hookimpls()]
    if lacking and (len(lacking) < len(_OF_A_DEVICE) or not manager.get_hookcallers(plugin)):
        msg = f"it lacks the hooks {', '.join(lacking)}; each is to be marked with `hookimpl`"
        raise PluginError(msg, where=source)
    hooks = {name: _hook(source, caller, record) for name, caller in callers.items()}
    return Backend(source, plugin, hooks)


def _hook(source: Source, caller: pluggy.HookCaller, record: Record) -> Callable[..., Any]:
    """A hook as the core calls it: guarded, or its default."""
    hook, spec, impls = caller.name, caller.spec, caller.get_hookimpls()
    kind = _ANSWERS.get(hook)
    if spec is None or not impls:  # no spec: a hook of a later version of the core
        default: Any = () if isinstance(kind, list) else {} if kind is Mapping else None
        return lambda *args: default
    function: Callable[..., Any] = impls[0].function
    names = (*impls[0].argnames, *impls[0].kwargnames)
    takes = [(name, place) for place, name in enumerate(spec.argnames) if name in names]

    def guarded(*args: Any) -> Any:
        try:
            answer = function(**{name: args[place] for name, place in takes})
            if kind is not None and not _fits(answer, kind):
                wanted = spec.function.__annotations__["return"]
                msg = f"it returned {answer!r:.100}, expected {wanted}"
                raise TypeError(msg)
        except UmbelError:
            raise
        except (Exception, SystemExit) as error:
            text = call_text(hook, args)
            record(source, text, error)
            msg = f"the plugin {source.name!r} failed in {text}: {one_line(error)}"
            failed = DeviceError if args and isinstance(args[0], Device) else PluginError
            raise failed(msg, where=source) from error
        if kind in (DeviceInfo, BufferType):
            wrong = _wrong_value(answer)
            if wrong:
                text = call_text(hook, args)
                record(source, text, PluginError(wrong))
                msg = f"the plugin {source.name!r} failed in {text}: {wrong}"
                raise PluginError(msg, where=source)
        return answer

    return guarded


def _wrong_value(answer: object) -> str:
    """What a device tells of itself and cannot be so; empty if nothing."""
    for name, (expected, good) in _VALUES.items():
        value = getattr(answer, name, None)
        if hasattr(answer, name) and not good(value):
            return f"{name} is {value!r:.100}, expected {expected}"
    return ""


def _fits(answer: object, kind: Any) -> bool:
    if isinstance(kind, list):
        return isinstance(answer, (list, tuple)) and all(isinstance(a, kind[0]) for a in answer)
    return isinstance(answer, kind)


def call_text(hook: str, args: Sequence[object]) -> str:
    """How a call is named in messages: `open(host:0)`."""
    device = args[0].name if args and isinstance(args[0], Device) else ""
    return f"{hook}({device})"


def one_line(error: BaseException) -> str:
    """What an error says, in one line, with its type unless it is one of ours."""
    if isinstance(error, UmbelError):
        return " ".join(error.what.split())
    text = "".join(traceback.format_exception_only(error))
    return " ".join(text.split())[:400]


@attrs.frozen(eq=False)
class Memory:
    """A device's `BufferType`, guarded: whatever its methods raise is an `UmbelError`."""

    kind: BufferType
    device: Device

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.kind, name)
        return partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except UmbelError:
            raise
        except Exception as error:
            failed = OutOfMemoryError if isinstance(error, MemoryError) else DeviceError
            msg = f"{self.device.name} failed in {name}: {one_line(error)}"
            raise failed(msg, where=self.device.name) from error


def option_values(backend: Backend, given: Mapping[str, object]) -> dict[str, object]:
    """What `open` gets: every option that the backend declares, as given or by default.

    A value from Python goes the way of one from the command line, by its text.
    """
    known: dict[str, Option] = {option.name: option for option in backend.options()}
    values = {name: option.default for name, option in known.items()}
    for name, value in given.items():
        if name not in known:
            msg = f"the backend {backend.name!r} has no option {name!r}"
            raise OptionError(msg, expected=", ".join(known) or "no option at all", got=name)
        option = known[name]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        msg = f"the option {backend.name}.{name} cannot be {text!r}"
        if option.choices and text not in option.choices:
            raise OptionError(msg, expected=", ".join(option.choices), got=text)
        try:
            values[name] = option.parse(text)
        except Exception as error:
            raise OptionError(msg, expected=option.help, got=one_line(error)) from error
    return values

"""One backend as the core calls it: its hooks bound once, every call guarded and checked.

pluggy finds the hooks and validates them; it takes no part in calling them: a call through it
costs ten direct ones and asks everybody, where a device's questions go to its owner alone.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, runtime_checkable

import attrs
import pluggy

from umbel import hookspecs
from umbel.errors import DeviceError, OptionError, OutOfMemoryError, PluginError, UmbelError
from umbel.graph import Operation, Tensor
from umbel.hookspecs import BufferType, Device, DeviceInfo, Kernel, Option, SplitGraph

_OF_A_DEVICE = ("devices", "open", "buffer_type", "op_supported", "graph_compute")
_ANSWERS: Mapping[str, Any] = {  # what a hook must return; [X] is a list of X
    "devices": [Device],
    "open": DeviceInfo,
    "buffer_type": runtime_checkable(BufferType),
    "op_supported": str | None,
    "options": [Option],
    "status": Mapping,
    "doctor": [str],
    "ops": [Operation],
    "architectures": [object],
    "kernels": [Kernel],
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

    name: str
    distribution: str
    version: str
    reason: str  # one line
    detail: str = attrs.field(repr=False)  # the traceback

    @property
    def source(self) -> Source:
        return Source(self.name, self.distribution, self.version)

    def error(self) -> PluginError:
        """The same, to be raised where the user asked for this plugin by name."""
        msg = f"the plugin {self.name!r} cannot be used: {self.reason}"
        do = "mend, update or uninstall it; `umbel plugins` lists all plugins"
        return PluginError(msg, where=self.source, do=do)


Record = Callable[[Source, str, BaseException], None]  # of a fault: whose, where, what


def _nothing(*args: object) -> Any:
    """The default of a hook that is told something."""


def _none(*args: object) -> tuple[()]:
    """The default of a hook that is asked for a list."""
    return ()


def _unknown(*args: object) -> Mapping[str, object]:
    """The default of `status`."""
    return {}


@attrs.frozen(eq=False, repr=False)
class Backend:
    """A loaded backend. Hooks are called by position, with the arguments of `umbel.hookspecs`.

    Whatever a hook raises arrives as an `UmbelError` that names plugin, hook and device. A
    plugin that only brings operations, models or kernels needs none of the hooks for devices.
    """

    source: Source
    plugin: object
    devices: Callable[[], Sequence[Device]] = _none
    open: Callable[[Device, Mapping[str, object], Sequence[Kernel]], DeviceInfo] = _nothing
    close: Callable[[Device], None] = _nothing
    buffer_type: Callable[[Device], BufferType] = _nothing
    op_supported: Callable[[Device, Tensor], str | None] = _nothing
    graph_compute: Callable[[Device, SplitGraph], None] = _nothing
    sync: Callable[[Device], None] = _nothing
    forget: Callable[[Device, int], None] = _nothing
    cancel: Callable[[Device], None] = _nothing
    options: Callable[[], Sequence[Option]] = _none
    status: Callable[[Device], Mapping[str, object]] = _unknown
    doctor: Callable[[], Sequence[str]] = _none
    commands: Callable[[Any], None] = _nothing
    ops: Callable[[], Sequence[Operation]] = _none
    architectures: Callable[[], Sequence[Any]] = _none
    kernels: Callable[[Device], Sequence[Kernel]] = _none

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def distribution(self) -> str:
        """Name and version of the distribution that brought it, or "built in"."""
        return str(self.source)

    def __repr__(self) -> str:
        return f"<backend {self.name}, {self.source}>"


def bind(source: Source, plugin: object, record: Record) -> Backend:
    """The backend that a plugin object implements; faults of its hooks go to `record`."""
    manager = pluggy.PluginManager(hookspecs.GROUP)  # of its own: a fault leaves nothing behind
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin, source.name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(" ".join(str(error).split()), where=source) from error
    hooks = {
        caller.name: _guard(source, caller.name, _adapt(caller, impl), record)
        for caller in manager.get_hookcallers(plugin) or ()
        for impl in caller.get_hookimpls()
        if caller.has_spec()  # pluggy lets a hook be optional: for a later version of the core
    }
    missing = [hook for hook in _OF_A_DEVICE if hook not in hooks]
    if missing and (len(missing) < len(_OF_A_DEVICE) or not hooks):
        msg = f"it lacks the hooks {', '.join(missing)}; each is to be marked with `hookimpl`"
        raise PluginError(msg, where=source)
    return Backend(source, plugin, **hooks)


def _adapt(caller: pluggy.HookCaller, impl: pluggy.HookImpl) -> Callable[..., Any]:
    """The hook's own function, callable with all arguments of its specification."""
    function: Callable[..., Any] = impl.function
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        msg = f"the hook {caller.name!r} is a generator, wrapper or coroutine"
        raise PluginError(msg, expected="a plain function")
    places = caller.spec.argnames if caller.spec else ()
    names = (*impl.argnames, *impl.kwargnames)
    if names == places:
        return function
    wanted = ", ".join(f"{name}={name}" for name in names if name in places)
    text = f"lambda {', '.join(places)}: function({wanted})"  # names of our own specification
    adapted: Callable[..., Any] = eval(text, {"function": function})  # as fast as by hand
    return adapted


def _guard(
    source: Source, hook: str, call: Callable[..., Any], record: Record
) -> Callable[..., Any]:
    kind = _ANSWERS.get(hook)

    def guarded(*args: Any) -> Any:
        try:
            answer = call(*args)
            if kind is not None:
                _check(answer, kind)
        except UmbelError:
            raise
        except (Exception, SystemExit) as error:
            text = call_text(hook, args)
            record(source, text, error)
            msg = f"the plugin {source.name!r} failed in {text}: {one_line(error)}"
            raise _kind(error, args)(msg, where=source) from error
        return answer

    return guarded


def _check(answer: object, kind: Any) -> None:
    if isinstance(kind, list):
        good = isinstance(answer, (list, tuple)) and all(isinstance(a, kind[0]) for a in answer)
        wanted = f"a list of {kind[0].__name__}"
    else:
        good, wanted = isinstance(answer, kind), getattr(kind, "__name__", kind)
    if not good:
        msg = f"it returned {answer!r:.100}, expected {wanted}"
        raise TypeError(msg)


def _kind(error: BaseException, args: Sequence[object]) -> type[UmbelError]:
    if isinstance(error, MemoryError):
        return OutOfMemoryError
    return DeviceError if args and isinstance(args[0], Device) else PluginError


def call_text(hook: str, args: Sequence[object]) -> str:
    """How a call is named in messages: `open(numa:0)`."""
    device = args[0].name if args and isinstance(args[0], Device) else ""
    return f"{hook}({device})"


def one_line(error: BaseException) -> str:
    """What an error says, in one line, with its type unless it is one of ours."""
    if isinstance(error, UmbelError):
        return " ".join(error.what.split())
    text = "".join(traceback.format_exception_only(error))
    return " ".join(text.split())[:400]


def option_values(backend: Backend, given: Mapping[str, object]) -> dict[str, object]:
    """What `open` gets: every option that the backend declares, as given or by default."""
    known = {option.name: option for option in backend.options()}
    for name in given:
        if name not in known:
            msg = f"the backend {backend.name!r} has no option {name!r}"
            raise OptionError(msg, expected=", ".join(known) or "no option at all", got=name)
    return {
        name: _value(f"{backend.name}.{name}", option, given.get(name))
        for name, option in known.items()
    }


def _value(label: str, option: Option, given: object) -> object:
    """A value from Python goes the way of one from the command line; None is the default."""
    if given is None:
        return option.default
    text = str(given).lower() if isinstance(given, bool) else str(given)
    try:
        if option.choices and text not in option.choices:
            msg = f"choose from {', '.join(option.choices)}"
            raise ValueError(msg)
        return option.parse(text)
    except (Exception, SystemExit) as error:
        why = str(error) if isinstance(error, ValueError) else one_line(error)
        msg = f"the option {label} cannot be {text!r}: {why}"
        raise OptionError(msg, expected=option.help, got=text) from error

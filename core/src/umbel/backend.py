"""One backend as the core calls it: its hooks bound once, every call guarded and checked.

pluggy finds the hooks and validates them; it takes no part in calling them: a call through it
costs ten direct ones and asks everybody, where a device's questions go to its owner alone.
"""

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pluggy

from umbel import __version__, hookspecs
from umbel.errors import DeviceError, OutOfMemoryError, PluginError, UmbelError
from umbel.graph import Operation, Tensor
from umbel.hookspecs import UMBEL_API, BufferType, Device

_OF_A_DEVICE = ("devices", "open", "buffer_type", "op_supported", "graph_compute")
_NAMES = {"Operation": Operation, "Tensor": Tensor}  # what `hookspecs` cannot import


@attrs.frozen
class Source:
    """Where a backend comes from."""

    name: str  # of the backend
    distribution: str
    version: str = attrs.field(default="", eq=False)  # one seen twice is one

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip() or self.name


@attrs.frozen
class Fault:
    """Why a plugin, or one hook of it, cannot be used."""

    source: Source
    occasion: str  # what was done: a hook with its device, an entry point
    reason: str  # one line that begins with it
    detail: str = attrs.field(repr=False)  # the traceback

    def error(self) -> PluginError:
        """The same, to be raised where the user asked for this plugin by name."""
        msg = f"the plugin {self.source.name!r} cannot be used: {self.reason}"
        do = "mend, update or uninstall it; `umbel plugins` lists all plugins"
        return PluginError(msg, where=self.source, do=do)


Record = Callable[[Source, str, BaseException], None]  # of a fault: whose, where, what


class Backend(SimpleNamespace):
    """A loaded backend. Its hooks are its attributes, called by position: `open(device, ...)`.

    Whatever a hook raises arrives as an `UmbelError` that names plugin, hook and device. A
    plugin that only brings operations, models or kernels needs none of the hooks for devices.
    """

    name: str
    source: Source
    plugin: object


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
    callers = {name: caller for name, caller in vars(manager.hook).items() if caller.spec}
    lacking = [hook for hook in _OF_A_DEVICE if not callers[hook].get_hookimpls()]
    if lacking and (len(lacking) < len(_OF_A_DEVICE) or not manager.get_hookcallers(plugin)):
        msg = f"it lacks the hooks {', '.join(lacking)}; each is to be marked with `hookimpl`"
        raise PluginError(msg, where=source)
    hooks = {name: _hook(source, caller, record) for name, caller in callers.items()}
    return Backend(name=source.name, source=source, plugin=plugin, **hooks)


def _hook(source: Source, caller: pluggy.HookCaller, record: Record) -> Callable[..., Any]:
    """A hook as the core calls it: guarded, or its default."""
    hook, spec, impls = caller.name, caller.spec, caller.get_hookimpls()
    assert spec is not None
    text = spec.function.__annotations__["return"]
    kind = get_type_hints(spec.function, localns=_NAMES)["return"]
    if not impls:
        default: Any = {Sequence: (), Mapping: {}}.get(get_origin(kind))
        return lambda *args: default
    function, names = impls[0].function, [*impls[0].argnames, *impls[0].kwargnames]
    takes = [name for name in names if name in spec.argnames]
    places = [spec.argnames.index(name) for name in takes]
    # By position, which costs a third of a call by names: that where others stand between them.
    plain = takes == names[: len(takes)]
    every = plain and takes == list(spec.argnames)

    def guarded(*args: Any) -> Any:
        try:
            got = args if every else [args[place] for place in places]
            answer = function(*got) if plain else function(**dict(zip(takes, got, strict=True)))
            if kind is not type(None):
                _check(answer, kind, text, source.name)
        except UmbelError:
            raise
        except (Exception, SystemExit) as error:
            call = call_text(hook, args)
            record(source, call, error)
            msg = f"the plugin {source.name!r} failed in {call}: {one_line(error)}"
            failed = DeviceError if args and isinstance(args[0], Device) else PluginError
            raise failed(msg, where=source) from error
        return answer

    return guarded


def _check(answer: Any, kind: Any, text: str, owner: str) -> None:
    """Raises what is wrong with the answer of a hook whose specification returns `kind`."""
    outer, inner = get_origin(kind), get_args(kind)
    if outer is Sequence:  # not any: a text is a sequence of texts
        good = isinstance(answer, (list, tuple)) and all(isinstance(a, inner) for a in answer)
    else:
        good = isinstance(answer, Mapping if outer is Mapping else kind)
    if not good:
        msg = f"it returned {answer!r:.100}, expected {text}"
        raise TypeError(msg)
    if kind is BufferType and (type(answer.alignment) is not int or answer.alignment < 1):
        msg = f"alignment is {answer.alignment!r:.100}, expected a positive whole number"
        raise ValueError(msg)
    if inner == (Device,):
        form = re.compile(rf"{re.escape(owner)}:(0|[1-9][0-9]*)")
        whole = [d for d in answer if isinstance(d.priority, int)]
        if len({d.name for d in whole if form.fullmatch(str(d.name))}) < len(answer):
            msg = f"devices need unique names '{owner}:N' and whole priorities: {answer}"
            raise ValueError(msg)


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
    """A device's `BufferType`, guarded: whatever its methods raise is an `UmbelError`, and
    `allocate` and `store` hold the device's lock."""

    kind: BufferType
    device: Device
    lock: AbstractContextManager[Any]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.kind, name)
        return partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        try:
            with self.lock if name in ("allocate", "store") else nullcontext():
                return method(*args)
        except UmbelError as error:
            what = ", ".join(a.label for a in args if isinstance(a, Tensor)) or name
            error.where = error.where or f"{what} on {self.device.name}"
            raise
        except Exception as error:
            failed = OutOfMemoryError if isinstance(error, MemoryError) else DeviceError
            msg = f"{self.device.name} failed in {name}: {one_line(error)}"
            raise failed(msg, where=self.device.name) from error

"""Looks for what keeps Umbel from working: the machine, the plugins, the extras, one model.

No check can take the others down: one that fails or hangs becomes a finding.
"""

import os
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any

import umbel
from umbel import host, plugins
from umbel.backend import one_line
from umbel.errors import OptionError, UmbelError
from umbel.extras.locate import find_model
from umbel.gguf.types import F32
from umbel.hookspecs import Device, Finding
from umbel.tools.machine import CHECKS, size

TIME_LIMIT = 2.0  # seconds for the `doctor()` of one plugin

Row = tuple[str, Finding]  # and what it is about


def examine(
    model: str | None = None,
    *,
    device: str = plugins.AUTO,
    ctx: int | None = None,
    kv: str = "auto",
) -> list[Row]:
    """All findings. With a model: can it be opened, and is there room for that context?

    `OptionError` is for arguments that cannot be used, among them a model that is not here.
    """
    path = _find(model)
    rows = [row for topic, check in CHECKS.items() for row in _guarded(topic, check)]
    rows += _guarded("extras", _extras) + _guarded("plugins", lambda: _plugins(device))
    rows += _guarded("device", lambda: _devices(device))
    if path is not None:
        rows += _guarded("model", lambda: _model(path, device, ctx, kv))
    return rows


def _find(model: str | None) -> Path | None:
    """The file; a name on the hub is none, as nothing is to be downloaded."""
    if model in (None, "demo") or Path(model).expanduser().exists():
        return None if model is None else find_model(model)
    msg, do = "there is no such file", "give a path; what is on the hub alone is not looked at"
    raise OptionError(msg, where="MODEL", got=model, do=do)


def _guarded(topic: str, check: Callable[[], Iterator[Finding | Row]]) -> list[Row]:
    """What a check says, also of its own end; a wrong argument is not its affair."""
    rows: list[Row] = []
    try:
        for found in check():
            rows.append((topic, found) if isinstance(found, Finding) else found)
    except OptionError:
        raise
    except UmbelError as error:
        about = [f"{k} {v}" for k in ("where", "expected", "got") if (v := getattr(error, k))]
        what = f"{one_line(error)} ({', '.join(about)})" if about else one_line(error)
        rows.append((topic, Finding("error", what, error.do or "")))
    except Exception as error:
        what = f"this could not be looked at: {one_line(error)}"
        rows.append((topic, Finding("warning", what)))
    return rows


def _extras() -> Iterator[Row]:
    """The extras of the core, by the libraries that each asks for."""
    asked: dict[str, list[str]] = {}
    for line in metadata.requires("umbel-core") or ():
        if found := re.match(r"([\w.-]+).*\bextra *== *['\"]([\w-]+)", line):
            asked.setdefault(found[2], []).append(found[1])
    for extra, names in asked.items():
        missing = [name for name in names if not any(metadata.distributions(name=name))]
        what = f"not installed: pip install 'umbel-core[{extra}]' brings {', '.join(missing)}"
        good = Finding("ok", ", ".join(names))
        yield f"[{extra}]", Finding("note", what) if missing else good


def _plugins(devices: str) -> Iterator[Row]:
    """What each plugin tells of itself, and the faults of all; of those alone whose devices
    are named, where any are."""
    wanted = {name.strip().partition(":")[0] for name in devices.split(",")} - {plugins.AUTO}
    found, limit = plugins.get(), os.environ.get(plugins.VARIABLE)
    if limit is not None:
        yield "plugins", Finding("note", f"{plugins.VARIABLE}={limit!r} leaves the others out")
    found.load()
    told = {
        backend.source: found.in_time(backend, "doctor", TIME_LIMIT) or []
        for backend in list(found.backends.values())
        if not wanted or backend.name in wanted
    }
    for source, reason, names in found.describe():
        topic = f"plugin {source.name}"
        if wanted and source.name not in wanted:
            continue
        if reason:
            do = "mend, update or uninstall it; --debug shows where it failed"
            yield topic, Finding("error", reason, do)
        else:
            yield topic, Finding("ok", f"{source}: {', '.join(names) or 'no device'}")
        for finding in told.get(source, ()):
            yield topic, finding


def _devices(names: str) -> Iterator[Finding]:
    for name in names.split(","):
        device = plugins.get().find(name.strip())
        free = _free(device)
        told = f", {size(free)} free" if free else ""
        yield Finding("ok", f"{name} is {device.title}: {device.description}{told}")


def _model(path: Path, devices: str, ctx: int | None, kv: str) -> Iterator[Finding]:
    """Opens it on the host, which costs little: weights stay mapped until they are used."""
    with umbel.load(path, host.DEVICE.name, ctx=ctx, kv=kv) as model:
        runner, file = model.runner, model.file
        (target,) = runner.targets
        weights = sum(t.nbytes for t in file.tensors.values())
        state = runner.states.nbytes(target) + runner.arenas.nbytes(target)
        copies = sum(4 * prod(t.shape) for t in file.tensors.values() if t.dtype is not F32)
        memory: Any = target.buffer_type
        allowed = memory.limit  # as the host chose it
        kind = runner.definition.architecture.name
        need = f"{size(weights)} of weights, {size(state)} for {model.ctx} tokens of context"
    yield Finding("ok", f"{path.name} can be opened ({kind}): {need}")
    try:
        device = plugins.get().find(devices.partition(",")[0].strip())
        free = _free(device)
    except UmbelError:
        return  # told as what is wrong with the device
    if 0 < free < weights + state:
        do = "take a smaller file, a smaller --ctx, or --kv q8_0; close other programs"
        what = f"{device.title} has {size(free)} free, and {need} are wanted"
        yield Finding("warning", what, do)
    elif device.backend == host.DEVICE.backend and copies > allowed:
        what = f"float32 copies of the weights take {size(copies)}, {size(allowed)} is allowed"
        do = "it works, but slowly: take a smaller model, or free memory"
        yield Finding("warning", what, do)


def _free(device: Device) -> int:
    """Bytes that the device says to have; 0 where it does not."""
    told = plugins.get().backends[device.backend].status(device).get("memory_free")
    return told if isinstance(told, int) else 0

"""From a file and the names of devices to a runner: everything that is decided at load."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from umbel import gguf, plugins
from umbel.errors import (
    DeviceError,
    OptionError,
    PluginError,
    UmbelError,
    UnsupportedModelError,
)
from umbel.gguf.types import BY_NAME
from umbel.graph import Operation
from umbel.models import Architecture, ModelDefinition, architecture
from umbel.ops import OPS
from umbel.plan import Target
from umbel.runner import AUTO, Runner

log = logging.getLogger("umbel")

KV = ("f32", "f16", "q8_0")  # how keys and values can be kept, if not as their home likes
CTX = 4096  # tokens of context when nobody asks for more, if the model was trained for that


def define(file: gguf.GGUFFile) -> ModelDefinition:
    """The file with its architecture and the operations there are."""
    name = file.get("general.architecture", str)
    if file.unsupported:
        listed = ", ".join(f"{tensor} (type {number})" for tensor, number in file.unsupported)
        msg = "tensors of the file have types that cannot be read here"
        raise UnsupportedModelError(msg, where=file.path, got=listed)
    ops = _brought("ops", Operation, OPS)
    found = _brought("architectures", Architecture, {}).get(name)
    return ModelDefinition(file, found or architecture(name, where=file.path), ops)


def _brought(hook: str, kind: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """By name: what is known and what plugins bring. One at fault there is not used at all."""
    made, found = dict(known), plugins.get()
    found.load()
    for backend in list(found.backends.values()):
        more = dict(made)
        try:
            for one in getattr(backend, hook)():
                if not isinstance(one, kind) or not isinstance(one.name, str):
                    msg = f"{one!r:.100} is no {kind.__name__}"
                    raise PluginError(msg)
                if one.name in more:
                    msg = f"{kind.__name__} {one.name!r} exists already"
                    raise PluginError(msg)
                more[one.name] = one
            made = more
        except UmbelError as error:
            found.refuse(backend, f"{hook}()", error)
            log.warning("the plugin %r is not used: %s", backend.name, error.what)
    return made


def context(definition: ModelDefinition, ctx: int | None, on: Sequence[Target] = ()) -> int:
    """Tokens of context: as asked for, as trained, or as positions and devices allow."""
    trained = definition.hparams.n_ctx_train
    if ctx is None:
        sizes = "token_buckets" if definition.architecture.pooled else "length_buckets"
        return min(trained, *(max(getattr(t.info, sizes), default=CTX) for t in on), CTX)
    if number("ctx", ctx, 1) > trained:
        if definition.hparams.learned_positions:
            log.warning("the model has learned positions: ctx is %d, not %d", trained, ctx)
            return trained
        log.warning("ctx %d is more than the %d tokens of the training", ctx, trained)
    return ctx


def kv_dtype(definition: ModelDefinition, kv: str) -> str:
    """How keys and values are kept, which must divide their rows into whole blocks."""
    hp = definition.hparams
    rows = {n * size for n in hp.n_head_kv for size in (hp.head_dim_k, hp.head_dim_v)}
    fit = [AUTO, *(n for n in KV if not any(row % BY_NAME[n].block for row in rows))]
    if kv not in fit:
        sizes = " and ".join(map(str, sorted(rows)))
        msg = f"a KV cache with rows of {sizes} values cannot be stored as {kv}"
        raise OptionError(msg, where="kv", expected=", ".join(fit), got=kv)
    return kv


def number(name: str, value: object, least: int, most: int = 2**31 - 1) -> int:
    """A whole number out of a range, as Python or JSON give it; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        msg = f"{name} has a value that cannot be used"
        expected = f"a whole number from {least} to {most}"
        raise OptionError(msg, where=name, expected=expected, got=value)
    return value


def targets(
    names: str, options: plugins.Options | None, threads: int | None, strict: bool
) -> list[Target]:
    """The devices in order: those named, then those that share host memory, the host last.

    One that fails to open is an error when it was named, else a line says so. Nothing that the
    user has passed over is opened: what cannot help, and siblings of a named device.
    """
    from umbel.host import cpus  # the host's kernels are loaded when a device is looked for

    found = plugins.get()
    wanted = [name.strip() for name in names.split(",")]
    chosen = list(dict.fromkeys(found.find(name) for name in wanted))
    if strict and found.faults:
        raise found.faults[0].error()
    if plugins.AUTO in wanted:
        told = {f.source for f in found.faults if f.occasion in ("ops()", "architectures()")}
        for source, reason, owned in found.describe():
            if reason and not owned and source not in told:
                log.warning("the plugin %r is not used: %s", source.name, reason)
    if any(device.backend == "host" for device in chosen[:-1]):
        msg = "host runs everything: nothing is left for the devices after it"
        raise OptionError(msg, where="device", got=names, do="put host last")
    given = {name: dict(values) for name, values in (options or {}).items()}
    taken = {device.backend for device in chosen}
    helpers = [d for d in found.devices() if d.reads_host and not d.simulated]
    made: list[Target] = []
    for device in [*chosen, *(d for d in helpers if d.backend not in taken)]:
        backend = found.backends[device.backend]
        named = device in chosen and plugins.AUTO not in wanted
        try:
            if threads and any(option.name == "threads" for option in backend.options()):
                # the first tells of too many: helpers are not asked for more than there are
                some = min(threads, cpus()) if made else threads
                given.setdefault(backend.name, {}).setdefault("threads", some)
            made.append(found.open(device, given))
        except UmbelError as error:
            if strict or named or backend.name == "host" or isinstance(error, OptionError):
                raise
            log.warning("%s is not used: %s", device.name, error.what)
            continue
        if backend.name == "host":  # it runs everything: nothing is left for others
            break
    return made


def report(runner: Runner) -> None:
    """One line for each thing that is not as the user would take for granted."""
    _report_devices(runner)
    for device, kinds in runner.weights.converted.items():
        text = ", ".join(f"{n} tensors from {kind}" for kind, n in kinds.items())
        if runner.settings.strict:
            msg = f"weights would be converted for {device}"
            raise DeviceError(msg, got=text, do="leave out --strict, or take another file")
        log.warning("weights are converted for %s: %s", device, text)
    unused = sorted(set(runner.definition.file.tensors) - runner.weights.used)
    if unused:
        text = ", ".join(unused[:4]) + (" ..." if len(unused) > 4 else "")
        log.warning("%d tensors of the file are not used: %s", len(unused), text)


def _report_devices(runner: Runner) -> None:
    """Says what does not run on the first device, by the step of which most does not."""
    plans = [runner.plan(step) for step in runner.usual]
    plan = max(plans, key=lambda plan: len(runner.elsewhere(plan)))
    elsewhere = [(p.target.name, p.origin.partition(".")[0]) for p in runner.elsewhere(plan)]
    first, total = plan.first.name, len(plan.placement.nodes)
    for name in dict.fromkeys(name for name, _ in elsewhere):
        kinds = Counter(what for where, what in elsewhere if where == name)
        told = ", ".join(f"{n} {what}" for what, n in kinds.items())
        text = "%s does not run everything: %s computes %s of %d nodes; `umbel plan` tells why"
        log.warning(text, first, name, told, total)

"""From a file and the names of devices to a runner: everything that is decided at load."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from umbel import gguf, plugins
from umbel.errors import OptionError, UmbelError, UnsupportedModelError
from umbel.hookspecs import Device
from umbel.models import Architecture, ModelDefinition, StepShape, architecture
from umbel.ops import OPS
from umbel.plan import Target
from umbel.runner import Runner

log = logging.getLogger("umbel")

CTX = 4096  # tokens of context when nobody asks for more, if the model was trained for that


def define(file: gguf.GGUFFile) -> ModelDefinition:
    """The file with its architecture and the operations there are."""
    name = file.get("general.architecture", str)
    if file.unsupported:
        listed = ", ".join(f"{tensor} (type {number})" for tensor, number in file.unsupported)
        msg = "tensors of the file have types that cannot be read here"
        raise UnsupportedModelError(msg, where=file.path, got=listed)
    known = plugins.get()
    brought = [a for _, offers in known.ask("architectures") for a in offers]
    found: Architecture | None = next((a for a in brought if a.name == name), None)
    ops = dict(OPS)
    for backend, added in known.ask("ops"):
        for op in added:
            if op.name in ops:
                msg = f"{backend.name} brings an operation that exists already"
                raise OptionError(msg, got=op.name, do=f"uninstall {backend.distribution}")
            ops[op.name] = op
    return ModelDefinition.of(file, found or architecture(name, where=file.path), ops)


def context(definition: ModelDefinition, ctx: int | None) -> int:
    trained = definition.hparams.n_ctx_train
    if ctx is None:
        return min(trained, CTX)
    ctx = number("ctx", ctx, 1)
    if ctx > trained and definition.hparams.learned_positions:
        log.warning("the model has learned positions: ctx is %d, not %d", trained, ctx)
        return trained
    if ctx > trained:
        log.warning("ctx %d is more than the %d tokens of the training", ctx, trained)
    return ctx


def number(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        msg = f"{name} has a value that cannot be used"
        raise OptionError(msg, where=name, expected=f"a whole number from {least}", got=value)
    return value


def targets(
    names: str,
    options: Mapping[str, Mapping[str, object]] | None,
    threads: int | None,
    strict: bool,
) -> list[Target]:
    """The devices in order: those named, then those that share host memory, the host last."""
    found = plugins.get()
    if strict:
        for fault in found.faults:
            raise fault.error()
    chosen = [found.find(name.strip()) for name in names.split(",")]
    given = {name: dict(values) for name, values in (options or {}).items()}
    made: list[Target] = []
    for device in [*chosen, *found.devices()]:
        named = device in chosen
        if device.name in [t.name for t in made] or (device.simulated and not named):
            continue
        backend = found.owner(device)
        if threads is not None and any(o.name == "threads" for o in backend.options()):
            given.setdefault(backend.name, {}).setdefault("threads", threads)
        opened = _open(found, device, given, named)
        if opened is not None and (named or opened.info.reads_host):
            made.append(
                Target(
                    device,
                    opened.info,
                    opened.buffer_type,
                    backend.op_supported,
                    backend.graph_compute,
                    backend.sync,
                    backend.cancel,
                    backend.forget,
                    opened.lock,
                )
            )
    host = next(t for t in made if t.device.backend == "host")
    return [t for t in made if t is not host] + [host]


def _open(
    found: plugins.Plugins, device: Device, options: plugins.Options, named: bool
) -> plugins.OpenDevice | None:
    """The open device; one that nobody named may fail, which a line says."""
    try:
        return found.open(device, options)
    except UmbelError as error:
        if named or device.backend == "host":
            raise
        log.warning("%s is not used: %s", device.name, error.what)
        return None


def report(runner: Runner) -> None:
    """One line for each thing that is not as the user would take for granted."""
    if runner.definition.architecture.pooled:
        return
    _, plan = runner.plan(runner.padded(StepShape(1, 1, runner.settings.ctx, 1)))
    first = runner.targets[0]
    elsewhere = Counter(
        (p.target.name, p.origin.partition(".")[0])
        for p in plan.placement.nodes
        if p.target is not first
        and p.node.op is not None
        and p.node.op.name not in ("cast", "cont")
    )
    total = len(plan.placement.nodes)
    for name in {name for name, _ in elsewhere}:
        kinds = ", ".join(f"{n} {what}" for (t, what), n in elsewhere.items() if t == name)
        log.warning(
            "%s does not run everything: %s computes %s of %d", first.name, name, kinds, total
        )
        log.warning("`umbel plan MODEL --device %s` tells why", first.name)
    for device, kinds_of in runner.weights.converted.items():
        text = ", ".join(f"{n} tensors from {kind}" for kind, n in kinds_of.items())
        log.warning("weights are converted for %s: %s", device, text)
    unused = sorted(set(runner.definition.file.tensors) - runner.weights.used)
    if unused:
        text = ", ".join(unused[:4]) + (" ..." if len(unused) > 4 else "")
        log.warning("%d tensors of the file are not used: %s", len(unused), text)

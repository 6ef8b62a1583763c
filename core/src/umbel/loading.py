"""From a file and the names of devices to a runner: everything that is decided at load."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from umbel import gguf, plugins
from umbel.backend import Fault, Memory
from umbel.errors import (
    DeviceError,
    ModelFormatError,
    OptionError,
    PluginError,
    UmbelError,
    UnsupportedModelError,
)
from umbel.graph import Operation
from umbel.hookspecs import BufferType, Device
from umbel.models import Architecture, ModelDefinition, StepShape, architecture
from umbel.ops import OPS
from umbel.plan import Plan, Target
from umbel.runner import Runner
from umbel.text import Tokenizer

log = logging.getLogger("umbel")

BROUGHT = ("architectures()", "ops()")  # what a faulty plugin is left out of
CTX = 4096  # tokens of context when nobody asks for more, if the model was trained for that


def define(file: gguf.GGUFFile) -> ModelDefinition:
    """The file with its architecture and the operations there are."""
    name = file.get("general.architecture", str)
    if file.unsupported:
        listed = ", ".join(f"{tensor} (type {number})" for tensor, number in file.unsupported)
        msg = "tensors of the file have types that cannot be read here"
        raise UnsupportedModelError(msg, where=file.path, got=listed)
    found = _brought("architectures", Architecture, {}).get(name)
    ops = _brought("ops", Operation, OPS)
    for fault in plugins.get().faults_in(*BROUGHT):
        log.warning("the plugin %r brings nothing: %s", fault.name, fault.reason)
    return ModelDefinition.of(file, found or architecture(name, where=file.path), ops)


def _brought(hook: str, kind: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """By name: what is known and what plugins bring; nothing of one that is at fault."""
    made, found = dict(known), plugins.get()
    for backend, answer in found.ask(hook):
        added: dict[str, Any] = {}
        try:
            for one in answer:
                if not isinstance(one, kind) or not isinstance(one.name, str):
                    msg = f"{one!r:.100} is no {kind.__name__}"
                    raise PluginError(msg)
                if one.name in made or one.name in added:
                    msg = f"{one.name!r} exists already"
                    raise PluginError(msg)
                added[one.name] = one
        except PluginError as error:
            found.record(backend.source, f"{hook}()", error)
            continue
        made.update(added)
    return made


def check_vocabulary(definition: ModelDefinition, tokenizer: Tokenizer) -> None:
    """Every token has its row in the embedding, and every row is a token."""
    if tokenizer.n_vocab != definition.hparams.n_vocab:
        msg = "the vocabulary and the token embedding are of different sizes"
        where, rows = definition.file.path, definition.hparams.n_vocab
        raise ModelFormatError(msg, where=where, expected=tokenizer.n_vocab, got=rows)


def context(definition: ModelDefinition, ctx: int | None) -> int:
    """Tokens of context: as asked for, as trained, or as positions allow."""
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


def number(name: str, value: object, least: int, most: int = 2**31 - 1) -> int:
    """A whole number out of a range, as Python or JSON give it; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        msg = f"{name} has a value that cannot be used"
        expected = f"a whole number from {least}" + f" to {most}" * (most < 2**31 - 1)
        raise OptionError(msg, where=name, expected=expected, got=value)
    return value


def targets(
    names: str,
    options: Mapping[str, Mapping[str, object]] | None,
    threads: int | None,
    strict: bool,
) -> list[Target]:
    """The devices in order: those named, then those that share host memory, the host last.

    One that fails to open is an error when it was named, else a line says so. Nothing that the
    user has passed over is opened: what cannot help, and siblings of a named device.
    """
    found = plugins.get()
    wanted = [name.strip() for name in names.split(",")]
    chosen = [found.find(name) for name in wanted]
    if strict and found.faults:
        raise found.faults[0].error()
    _refuse(chosen, names, found.faults_in(*BROUGHT) if plugins.AUTO not in wanted else [])
    given = {name: dict(values) for name, values in (options or {}).items()}
    made: list[Target] = []
    taken = {d.backend for d in chosen}
    others = (
        d
        for d in found.devices()
        if d.reads_host and not d.simulated and d.backend not in taken
    )
    for device in dict.fromkeys([*chosen, *others]):
        backend = found.owner(device)
        named = device in chosen and plugins.AUTO not in wanted
        try:
            if threads and any(option.name == "threads" for option in backend.options()):
                given.setdefault(backend.name, {}).setdefault("threads", threads)
            opened = found.open(device, given)
        except UmbelError as error:
            if strict or named or backend.name == "host" or isinstance(error, OptionError):
                raise
            log.warning("%s is not used: %s", device.name, error.what)
            continue
        made.append(_target(opened))
        if backend.name == "host":  # it runs everything: nothing is left for others
            break
    return made


def _refuse(chosen: list[Device], names: str, faults: list[Fault]) -> None:
    """Raises what is wrong with devices that the user named."""
    for fault in faults:
        if any(d.backend == fault.name for d in chosen):
            raise fault.error()
    if any(d.backend == "host" for d in list(dict.fromkeys(chosen))[:-1]):
        msg = "host runs everything: nothing is left for the devices after it"
        raise OptionError(msg, where="device", got=names, do="put host last")


def _target(opened: plugins.OpenDevice) -> Target:
    backend = opened.backend
    return Target(
        opened.device,
        opened.info,
        cast(BufferType, Memory(opened.buffer_type, opened.device)),
        backend.op_supported,
        backend.graph_compute,
        backend.sync,
        backend.cancel,
        backend.forget,
        opened.lock,
    )


def report(runner: Runner) -> None:
    """One line for each thing that is not as the user would take for granted."""
    ctx, encoder = runner.settings.ctx, runner.definition.architecture.pooled
    steps = [StepShape(tokens, 1, ctx, 1) for tokens in (1, runner.longest_piece)]
    shapes = [runner.encoder_shape(ctx)] if encoder else [runner.padded(s) for s in steps]
    _report_devices(runner, [runner.plan(shape) for shape in shapes])
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


def _report_devices(runner: Runner, plans: Sequence[Plan]) -> None:
    """Says what does not run on the first device, by the step of which most does not."""
    first, backend = runner.targets[0].name, runner.targets[0].device.backend
    total = max(len(plan.placement.nodes) for plan in plans)
    elsewhere: Counter[tuple[str, str]] = Counter()
    for plan in plans:
        elsewhere |= Counter(
            (p.target.name, p.origin.partition(".")[0])
            for p in plan.placement.nodes
            if p.target.device.backend != backend
            and p.node.op
            and p.node.op.name not in ("cast", "cont")
        )
    for name in dict.fromkeys(name for name, _ in elsewhere):
        kinds = ", ".join(f"{n} {what}" for (t, what), n in elsewhere.items() if t == name)
        text = "%s does not run everything: %s computes %s of %d"
        log.warning(text, first, name, kinds, total)
        log.warning("`umbel plan MODEL --device %s` tells why", first)

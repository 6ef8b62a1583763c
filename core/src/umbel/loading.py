"""From a file and the names of devices to a runner: everything that is decided at load."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from umbel import gguf, plugins
from umbel.errors import (
    DeviceError,
    ModelFormatError,
    OptionError,
    UmbelError,
    UnsupportedModelError,
)
from umbel.models import Architecture, ModelDefinition, StepShape, architecture
from umbel.ops import OPS
from umbel.plan import Plan, Target
from umbel.runner import Runner
from umbel.text import Tokenizer

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
        if threads and any(option.name == "threads" for option in backend.options()):
            given.setdefault(backend.name, {}).setdefault("threads", threads)
        named = device in chosen and plugins.AUTO not in wanted
        try:
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


def _target(opened: plugins.OpenDevice) -> Target:
    backend = opened.backend
    return Target(
        opened.device,
        opened.info,
        opened.buffer_type,
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
    decode = runner.padded(StepShape(1, 1, ctx, 1))
    _report_devices(runner, runner.plan(runner.encoder_shape(ctx) if encoder else decode))
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


def _report_devices(runner: Runner, plan: Plan) -> None:
    """Says what does not run on the first device."""
    nodes, first = plan.placement.nodes, runner.targets[0].name
    backend = runner.targets[0].device.backend
    elsewhere = Counter(
        (p.target.name, p.origin.partition(".")[0])
        for p in nodes
        if p.target.device.backend != backend
        and p.node.op
        and p.node.op.name not in ("cast", "cont")
    )
    for name in dict.fromkeys(name for name, _ in elsewhere):
        kinds = ", ".join(f"{n} {what}" for (t, what), n in elsewhere.items() if t == name)
        text = "%s does not run everything: %s computes %s of %d"
        log.warning(text, first, name, kinds, len(nodes))
        log.warning("`umbel plan MODEL --device %s` tells why", first)

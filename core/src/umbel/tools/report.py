"""What the owner of a device sends to those who cannot try it: `umbel bench --submit-report`.

One Markdown file. Its head is for people; below it stands everything as one block of JSON,
which `read` gives back: versions, what the backend tells of its device, speeds, memory, what
runs elsewhere, and whether the device gives what the host gives. Whatever names a person or a
machine is taken out first.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import umbel
from umbel import plugins
from umbel.errors import UmbelError
from umbel.model import Model
from umbel.plan import Target
from umbel.state import Sequence as Seq
from umbel.state.store import write_atomically
from umbel.tools import doctor

FORMAT = 1  # of the JSON; another number where a key goes or means something else
HEAD = "# Umbel report"
PROMPT = "Once upon a time there was a little boat that wanted to see the ocean."
TOKENS = 64  # of prompt and answer together at most
Data = dict[str, Any]


@attrs.frozen
class Observed:
    """What one device did with the prompt, and all that was measured on it."""

    told: Data
    ids: list[int]  # the prompt
    logits: np.ndarray  # after each of them: (len(ids), n_vocab)
    tokens: list[int]  # the greedy answer


class _Kept(logging.Handler):
    def __init__(self, notes: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        self.notes.append(record.getMessage())


@contextlib.contextmanager
def notes() -> Iterator[list[str]]:
    """What Umbel says while this lasts."""
    kept: list[str] = []
    handler, log = _Kept(kept), logging.getLogger("umbel")
    log.addHandler(handler)
    try:
        yield kept
    finally:
        log.removeHandler(handler)


# on a device


def observe(model: Model, rows: Sequence[Mapping[str, Any]], said: Sequence[str]) -> Observed:
    """All that a loaded model can tell; `rows` are its speeds, `said` the notes so far."""
    ids = model.tokenizer.encode(PROMPT, eos=False)[: max(1, min(TOKENS, model.ctx) // 2)]
    logits, tokens = _answer(model, ids, min(TOKENS, model.ctx) - len(ids))
    told = {
        "model": _model(model),
        "devices": [_target(model, target) for target in model.runner.every],
        "plans": _plans(model),
        "speeds": list(rows),
        "notes": list(said),
    }
    return Observed(told, ids, logits, tokens)


def _model(model: Model) -> Data:
    kinds = Counter(t.dtype.name for t in model.file.tensors.values())
    return {
        "file": Path(model.file.path).name,
        "bytes": model.file.size,
        "architecture": model.runner.definition.architecture.name,
        "types": dict(kinds),
        "ctx": model.ctx,
    }


def _answer(model: Model, ids: list[int], n: int) -> tuple[np.ndarray, list[int]]:
    """The logits of a prompt, and the `n` tokens that are best one after the other."""
    runner, sequence = model.runner, Seq()

    def work() -> tuple[np.ndarray, list[int]]:
        try:
            logits = runner.forward(sequence, ids, every=True).astype(np.float32)
            tokens = [int(logits[-1].argmax())]
            while len(tokens) < n:
                tokens.append(int(runner.decode([sequence], tokens[-1:])[0].argmax()))
        finally:
            runner.cache.close(sequence)
        return logits, tokens

    return model.engine.call(work)


def _target(model: Model, target: Target) -> Data:
    runner, info = model.runner, target.info
    weights, state, compute = runner.weights, runner.states, runner.arenas
    return {
        "name": target.name,
        "description": target.device.description,
        "simulated": target.device.simulated,
        "compute_dtype": info.compute_dtype,
        "memory_total": info.memory_total,
        "memory_free_at_open": info.memory_free,
        "memory": {
            "weights": weights.nbytes(target),
            "state": state.nbytes(target),
            "compute": compute.nbytes(target),
        },
        "details": dict(info.details),
        "status": _tried(lambda: dict(target.hooks.status(target.device))),
    }


def _tried(ask: Callable[[], Data]) -> Data:
    """What a device answers; a report of one that fails is worth most."""
    try:
        return ask()
    except UmbelError as error:
        return {"error": str(error)}


def _plans(model: Model) -> list[Data]:
    """Of writing and of reading: how many splits, and what runs elsewhere."""
    found = []
    for shape in model.runner.usual:
        plan = model.runner.plan(shape)
        placed = [p for p in plan.placement.nodes if p.node.op]
        away = Counter(
            f"{p.node.op.name} on {p.target.name}: {p.reason}"
            for p in model.runner.elsewhere(plan)
            if p.node.op
        )
        sizes = {"tokens": shape.tokens, "kv_length": shape.kv_length}
        splits = len(plan.steps)
        found.append({**sizes, "nodes": len(placed), "splits": splits, "elsewhere": dict(away)})
    return found


# beside the host


def compare(host: Model, device: Observed) -> Data:
    """What the device gave, against what the host gives for the same tokens.

    `largest_error` is of the logits of the prompt, as a part of the largest of them. Where the
    greedy answers part, `gap` is by how much the host likes its own token better there, as a
    part of the same: one below the rounding of the device's dtype is no fault.
    """
    ids, tokens = device.ids, device.tokens
    logits, own = _answer(host, ids, len(tokens))
    size = float(np.abs(logits).max())
    found: Data = {
        "prompt_tokens": len(ids),
        "largest_error": float(np.abs(device.logits - logits).max()) / size,
        "finite": bool(np.isfinite(device.logits).all()),
        "answer_tokens": len(tokens),
    }
    pairs = enumerate(zip(tokens, own, strict=True))
    first = next((i for i, (a, b) in pairs if a != b), None)
    found["same_answer"], found["first_difference"] = first is None, first
    if first is not None:
        row = _answer(host, ids + own[:first], 1)[0][-1]
        found["gap"] = float(row[own[first]] - row[tokens[first]]) / size
        found["texts"] = [host.tokenizer.decode(t[: first + 1]) for t in (own, tokens)]
    return found


# the file


def write(
    path: Path,
    load_host: Callable[[], Model],
    seen: Sequence[Observed],
    failure: Data | None = None,
) -> None:
    """The report of devices that have run a model, which the host is given now.

    `failure` tells of the one that could not: its `device`, and the `error`.
    """
    beside: list[Data] = []
    try:
        if seen:
            with load_host() as host:
                beside = [compare(host, one) for one in seen]
    except UmbelError as error:  # no room for it, perhaps: what was measured is kept
        beside = [{"error": str(error)} for _ in seen]
    runs = [one.told | {"against_host": b} for one, b in zip(seen, beside, strict=True)]
    data = _private(_machine() | {"runs": runs, "failure": failure})
    write_atomically(path, lambda out: out.write(text(data).encode()))


def _machine() -> Data:
    found = plugins.get()
    sources = [backend.source for backend in found.backends.values()]
    rows = doctor.examine()
    findings = [
        {"topic": topic, "level": f.level, "what": f.what, "do": f.do} for topic, f in rows
    ]
    return {
        "format": FORMAT,
        "umbel": umbel.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "plugins": {s.name: f"{s.distribution} {s.version}".strip() for s in sources},
        "findings": findings,
    }


def _private(data: Data) -> Data:
    """The same without the names of the user, of the machine and of the home folder."""
    plain = json.loads(json.dumps(data, default=str), parse_constant=str)
    swaps = [(rf"{re.escape(home)}(?![\w.-])", "~") for home in _homes()]
    swaps += [(rf"(?<!\w){re.escape(name)}(?!\w)", word) for name, word in _names()]

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {cleaned(key): cleaned(one) for key, one in value.items()}
        if isinstance(value, list):
            return [cleaned(one) for one in value]
        if isinstance(value, str):
            for pattern, word in swaps:
                value = re.sub(pattern, word, value)
        return value

    result: Data = cleaned(plain)
    return result


def _homes() -> list[str]:
    """Longest first: one may lie in another."""
    home = os.path.expanduser("~")
    found = {home.rstrip("/"), os.path.realpath(home).rstrip("/")}
    return sorted(found - {""}, key=len, reverse=True)


def _names() -> list[tuple[str, str]]:
    """Names that many have tell nothing, and stand in sentences."""
    names: list[tuple[str, str]] = [(platform.node(), "HOST")]
    names.append((platform.node().partition(".")[0], "HOST"))
    with contextlib.suppress(Exception):  # of a user without a name
        names.append((getpass.getuser(), "USER"))
    names.append((os.environ.get("SUDO_USER", ""), "USER"))
    return [(name, word) for name, word in names if name not in ("", "root", "localhost")]


def text(data: Data) -> str:
    """The whole file."""
    block = json.dumps(data, indent=1, ensure_ascii=False).replace("`", "\\u0060")
    return f"{HEAD}\n\n{_head(data)}\n\n```json\n{block}\n```\n"


def read(text: str) -> Data:
    """What a report holds; a `ValueError` where it is none."""
    found = re.search(r"^```json\n(.*?)^```$", text, re.M | re.S)
    if not text.startswith(HEAD) or found is None:
        msg = f"it does not begin with {HEAD!r}, or has no block of JSON"
        raise ValueError(msg)
    data: Data = json.loads(found[1])
    return data


def _head(data: Data) -> str:
    """For people: a table of speeds, and what is odd."""
    models = [
        f"{run['model']['file']} ({run['model']['architecture']}, "
        f"{', '.join(run['model']['types'])})"
        for run in data["runs"]
    ]
    lines = [
        "Written by `umbel bench --submit-report`: attach it to an issue. The names of the",
        "user, the machine and the home folder were taken out; look through it all the same.",
        "",
        f"Umbel {data['umbel']}, {data['python']}, {data['system']}.",
        *(f"Model: {model}." for model in dict.fromkeys(models)),
        "",
        "| device | test | tokens/s | deviation |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['device']} | {row['test']} | {row['tps']:.2f} | {row['stddev']:.2f} |"
        for run in data["runs"]
        for row in run["speeds"]
    ]
    lines += ["", *(f"* {_verdict(run)}" for run in data["runs"])]
    if failure := data["failure"]:
        lines.append(f"* {failure['device']} failed: {' '.join(failure['error'].split())}")
    lines += [f"* {note}" for run in data["runs"] for note in run["notes"]]
    odd = (f for f in data["findings"] if f["level"] in ("warning", "error"))
    lines += [f"* {f['level']}: {f['topic']}: {f['what']}" for f in odd]
    return "\n".join(lines)


def _verdict(run: Data) -> str:
    told, beside = run["devices"][0], run["against_host"]
    name = told["name"] + (" (simulated: its speed says nothing)" if told["simulated"] else "")
    if "error" in beside:
        return f"{name}: not compared with the host: {beside['error'].splitlines()[0]}"
    if beside["same_answer"]:
        answer = f"the host's answer of {beside['answer_tokens']} tokens"
    else:
        answer = (
            f"parts from the host's answer at token {beside['first_difference']}, "
            f"where the logits are {beside['gap']:.1e} apart"
        )
    return f"{name}: {answer}; largest error of a logit {beside['largest_error']:.1e}"

"""Umbel beside `transformers` and llama.cpp on the same files: agreement and speed.

    python peers.py [--threads 2] [--turns 5] [--llama-cpp PYTHON] [--transformers PYTHON]
                    [--only NAME ...] [--write PAGE]

Each engine runs in a process of its own, with the same number of threads, by this Python or the
one that is given for it. What is compared with is the `ref` beside a file, which was computed
from the weights before they were exported; where there is none, transformers. In the speeds the
engines take turns, so that a machine whose speed drifts treats all alike; what counts is the
ratio within a turn, of which the median is told. `text.txt` is the opening of Shakespeare's
Coriolanus (public domain), as it stands in tinyshakespeare.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from umbel.extras.locate import find_demo

HERE = Path(__file__).parent
ORACLES = HERE.parents[1] / "core/tests/data/oracles"
TINY = (
    *("llama", "qwen2", "qwen3", "gemma3", "phi3", "gpt2", "olmo2", "granite", "lfm2"),
    *("mamba", "mamba2"),
)
DEMO = "SmolLM2-135M Q4_1"
FILES = (DEMO, "stories260K", *TINY)
ENGINES = ("umbel", "transformers", "llama.cpp")
GREEDY = 24  # tokens that are compared
PROMPT, ANSWER = 256, 32  # tokens of the speeds
GELU = "its GELU goes through a table of float16 values"
KNOWN = {  # faults of a peer, so that nobody looks for them elsewhere
    ("gpt2", "transformers"): "cannot load it: ignores the number of positions",
    ("qwen3", "transformers"): "cannot load it: ignores the size of the heads",
    ("gemma3", "transformers"): "assumes an attention scale: files do not have it",
    ("gemma3", "llama.cpp"): GELU,
    ("gpt2", "llama.cpp"): GELU,
    (DEMO, "llama.cpp"): "rounds activations to 8 bits, too",
}


class Refused(Exception):
    """What an engine said instead of an answer."""


class Engine:
    """The other end of `engines.py`."""

    def __init__(self, name: str, python: str, threads: int) -> None:
        self.name, self.threads = name, threads
        self._folder = tempfile.TemporaryDirectory()
        count = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        self._process = subprocess.Popen(
            [python, HERE / "engines.py", name],
            cwd=self._folder.name,
            env={**os.environ, **count},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, call: str, *args: Any) -> tuple[Any, float]:
        """The answer to one call, and how long it took there."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([call, *args]), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise Refused(f"its process ended with code {process.wait()}")
        told = json.loads(line)
        if "error" in told:
            raise Refused(" ".join(told["error"].split()))
        return told["answer"], told["seconds"]

    def load(self, path: Path, *, whole: bool) -> float:
        return self.ask("load", str(path), self.threads, whole)[1]

    def logits(self, ids: list[int]) -> np.ndarray:
        self.ask("logits", ids)
        return np.load(Path(self._folder.name) / "logits.npy").astype(np.float64)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


@attrs.frozen
class Peers:
    """Which Python runs which engine."""

    pythons: dict[str, str]
    threads: int

    @contextlib.contextmanager
    def start(self, name: str) -> Iterator[Engine]:
        with contextlib.closing(Engine(name, self.pythons[name], self.threads)) as engine:
            yield engine


@attrs.frozen
class Result:
    """What one engine makes of one file."""

    logits: np.ndarray  # (tokens, vocabulary)
    greedy: list[int]


# agreement


def softmax_log(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def perplexity(logits: np.ndarray, ids: list[int]) -> float:
    chosen = softmax_log(logits[:-1])[np.arange(len(ids) - 1), ids[1:]]
    return float(np.exp(-chosen.mean()))


def figures(logits: np.ndarray, reference: np.ndarray) -> list[str]:
    """How often the best token is the same, largest and mean difference, divergence."""
    difference = np.abs(logits - reference)
    same = (logits.argmax(-1) == reference.argmax(-1)).mean()
    expected = softmax_log(reference)
    divergence = (np.exp(expected) * (expected - softmax_log(logits))).sum(-1).mean()
    numbers = difference.max(), difference.mean(), abs(divergence)
    return [f"{100 * same:.1f} %", *(f"{number:.1e}" for number in numbers)]


def examine(peers: Peers, path: Path, ids: list[int]) -> dict[str, Result | str]:
    """By engine: what it makes of the file, or why nothing."""
    found: dict[str, Result | str] = {}
    for name in ENGINES:
        try:
            with peers.start(name) as engine:
                engine.load(path, whole=True)
                logits = engine.logits(ids)
                tokens = engine.ask("greedy", ids[:GREEDY], GREEDY)[0][0]
                found[name] = Result(logits, tokens)
        except Refused as refused:
            found[name] = str(refused)
    return found


def agreement(peers: Peers, name: str, path: Path, ids: list[int]) -> Iterator[list[str]]:
    """The rows of one file."""
    found = examine(peers, path, ids)
    truth = path.with_suffix(".npz")
    trained = not truth.exists()
    reference, ours = found["transformers"], found["umbel"]
    for engine, result in found.items():
        row = [name, engine]
        if isinstance(result, str):
            why = KNOWN.get((name, engine), result[:90].replace("|", "/"))
            yield [*row, *["-"] * 6, why]
            continue
        if not trained:
            row += figures(result.logits, np.load(truth)["ref"].astype(np.float64))
        elif isinstance(reference, str) or engine == "transformers":
            row += ["-"] * 4
        else:
            row += figures(result.logits, reference.logits)
        row.append(f"{perplexity(result.logits, ids):.3f}" if trained else "-")
        row.append("-" if isinstance(ours, str) else same_text(result.greedy, ours.greedy))
        yield [*row, KNOWN.get((name, engine), "")]


def same_text(tokens: list[int], ours: list[int]) -> str:
    """How many tokens come before the first that differs (Umbel ends where the model does)."""
    n = len(ours)
    same = next((i for i in range(n) if tokens[i : i + 1] != ours[i : i + 1]), n)
    return f"{same} of {n}"


# speed


def speeds(peers: Peers, path: Path, ids: list[int], turns: int) -> Iterator[list[str]]:
    """A row for each engine: medians, and the median of its ratios to Umbel within a turn."""
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(peers.start(name)) for name in ENGINES]
        loads = {engine.name: _ready(engine, path, ids) for engine in engines}
        able = [engine for engine in engines if loads[engine.name] is not None]
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ENGINES}
        for _ in range(turns):
            for engine in able:
                tokens, first, rest = engine.ask("greedy", ids, ANSWER)[0]
                rates[engine.name].append((len(ids) / first, (len(tokens) - 1) / rest))
        for engine in able:
            row = [engine.name]
            for kind in (0, 1):
                own, ours = ([r[kind] for r in rates[name]] for name in (engine.name, "umbel"))
                ratio = statistics.median(a / b for a, b in zip(own, ours, strict=True))
                row += [f"{statistics.median(own):.1f}", f"{ratio:.2f}"]
            memory, _ = engine.ask("peak_memory")
            yield [*row, f"{loads[engine.name]:.2f} s", f"{memory / 2**20:.0f} MiB"]


def _ready(engine: Engine, path: Path, ids: list[int]) -> float | None:
    """Seconds that loading took, when it is loaded and warm; None where it cannot."""
    try:
        engine.ask("version")  # imports it
        seconds = engine.load(path, whole=False)
        engine.ask("greedy", ids, ANSWER)
    except Refused as refused:
        print(f"{engine.name}: {refused}", file=sys.stderr)
        return None
    return seconds


# the page


def table(heads: str, rows: list[list[str]]) -> str:
    lines = [heads.split(" | "), ["---"] * (heads.count(" | ") + 1), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def report(peers: Peers, only: list[str], turns: int) -> str:
    """Both tables, and what they were measured with."""
    text = (HERE / "text.txt").read_text()
    rows, rates = [], []
    for name in only or FILES:
        print(name, file=sys.stderr)
        path = find_demo() if name == DEMO else ORACLES / f"{name}.gguf"
        if path.with_suffix(".npz").exists():
            ids = np.load(path.with_suffix(".npz"))["ids"].tolist()
        else:
            with peers.start("umbel") as engine:
                engine.load(path, whole=False)
                ids = engine.ask("tokenize", text)[0][:448]
        rows += agreement(peers, name, path, ids)
        if name == DEMO:
            rates = list(speeds(peers, path, ids[:PROMPT], turns))
    versions = []
    for name in ENGINES:
        with peers.start(name) as engine, contextlib.suppress(Refused):
            versions.append(f"{name} {engine.ask('version')[0]}")
    where = f"{os.cpu_count()} virtual processors ({platform.machine()})"
    where += f" with a load of {os.getloadavg()[0]:.1f}, threads: {peers.threads}"
    lines = [f"{', '.join(versions)}; {where}."]
    heads = "file | engine | same best token | largest difference | mean difference | KL | "
    lines.append(table(f"{heads}perplexity | same text as Umbel | notes", rows))
    if rates:
        heads = "engine | prompt, t/s | x Umbel | answer, t/s | x Umbel | load | peak memory"
        lines.append(table(heads, rates))
    return "\n\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], choices=FILES, metavar="NAME")
    parser.add_argument("--write", type=Path)
    for name in ("transformers", "llama-cpp"):
        parser.add_argument(f"--{name}", default=sys.executable, metavar="PYTHON")
    args = parser.parse_args()
    if args.write and (args.only or not args.write.is_file()):
        parser.error("--write renews a page that exists, and with all files")
    pythons = {"transformers": args.transformers, "llama.cpp": args.llama_cpp}
    peers = Peers({"umbel": sys.executable, **pythons}, args.threads)
    told = report(peers, args.only, args.turns)
    print(told)
    if args.write:
        marks = r"(<!-- tables -->\n).*(\n<!-- end of the tables -->)"
        page = args.write.read_text("utf-8")
        page = re.sub(marks, lambda m: f"{m[1]}\n{told}\n{m[2]}", page, flags=re.DOTALL)
        args.write.write_text(page, "utf-8")


if __name__ == "__main__":
    main()

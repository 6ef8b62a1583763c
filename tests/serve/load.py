"""Run as a program: what the server does under load. It prints a table, and ends with 1 where a
goal is missed.

    python tests/serve/load.py [--minutes N] [--clients N] [--cases N]

* mixed: clients in waves, with chats, completions, streams, seeds, stop strings and shared
  beginnings; one in ten goes without a word. Each text is held against that of a lone model.
* waiting: the time to the first token of a short request while a long prompt is read.
* cut: requests cut off at every byte of the body, and streams at every byte of the answer.
* schemathesis: cases of our own OpenAPI document.

The server has one core, all else the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import httpx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

from peers import model  # noqa: E402

STARTS = (
    "Once upon a time there was a dog who",
    "The capital of France is",
    "Write a list of three colours:",
    "In the beginning of the story, Lily and Tom went to the park. They saw",
)
LONG = " ".join(f"word{i % 97}" for i in range(1500))  # about 4,000 tokens


@attrs.frozen
class Row:
    what: str
    goal: str
    found: str
    reached: bool = True


@attrs.frozen
class Case:
    """A request, and what a lone model answers."""

    body: dict[str, Any]
    text: str


@contextlib.contextmanager
def serving(*words: str) -> Iterator[tuple[str, int]]:
    """A server on a core of its own: its address and its process."""
    command = ["taskset", "-c", "0", sys.executable, "-m", "umbel", "serve", *words]
    command += ["--port", "0", "--threads", "1"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if "http://" in line)
        try:
            yield re.findall(r"http://\S+:\d+", told)[0], process.pid
        finally:
            process.terminate()


def resident(pid: int) -> int:
    """Bytes of memory of a process that are its own."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(n) << 10 for n in re.findall(r"^Private_\w+:\s+(\d+) kB", text, re.M))


def cases(path: Path) -> list[Case]:
    """40 requests, and their texts from a model that nobody else uses."""
    import umbel

    made = []
    with umbel.load(path, ctx=512, threads=1) as alone:
        for i in range(40):
            sampling = {"temperature": 0.9, "seed": i} if i % 2 else {"temperature": 0}
            stop = {"stop": [".", "\n\n"]} if i % 3 == 0 else {}
            body = {"max_tokens": 8 + 4 * (i % 6), **sampling, **stop}
            prompt = f"{STARTS[i % 4]} {'very ' * (i % 5)}{i}"
            if i % 4 == 3:
                messages = [{"role": "user", "content": prompt}]
                text = alone.chat(messages, **body).read()
                made.append(Case({"messages": messages, **body}, text))
            else:
                text = alone.generate(prompt, **body).read()
                made.append(Case({"prompt": prompt, **body}, text))
    return made


@attrs.define
class Seen:
    """What all clients saw."""

    answers: int = 0
    wrong: int = 0
    gone: int = 0
    later: int = 0  # told to come back
    failed: list[str] = attrs.field(factory=list)
    firsts: list[float] = attrs.field(factory=list)
    seconds: list[float] = attrs.field(factory=list)


async def one(client: httpx.AsyncClient, case: Case, seen: Seen, chance: random.Random) -> None:
    chat = "messages" in case.body
    path = "/v1/chat/completions" if chat else "/v1/completions"
    leaves = chance.random() < 0.1
    body = {**case.body, "stream": leaves or chance.random() < 0.7}
    began, first, text = time.perf_counter(), 0.0, ""
    async with client.stream("POST", path, json=body) as answer:
        if answer.status_code == 429:
            seen.later += 1
            await asyncio.sleep(float(answer.headers["Retry-After"]) * chance.random())
            return
        if answer.status_code != 200:
            seen.failed.append(f"{answer.status_code} {await answer.aread()!r}")
            return
        if not body["stream"]:
            choice = json.loads(await answer.aread())["choices"][0]
            text = choice["message"]["content"] if chat else choice["text"]
        else:
            n = chance.randint(0, 6) if leaves else -1
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                told = json.loads(line[6:])
                if "error" in told:
                    seen.failed.append(line)
                    return
                choice = told["choices"][0]
                text += (choice["delta"].get("content") or "") if chat else choice["text"]
                first = first or time.perf_counter() - began
                n -= 1
                if n == 0:
                    seen.gone += 1
                    return
    seen.answers += 1
    seen.firsts.append(first or time.perf_counter() - began)
    seen.seconds.append(time.perf_counter() - began)
    if text != case.text:
        seen.wrong += 1
        seen.failed.append(f"{case.body}: {text!r} is not {case.text!r}")


async def wave(url: str, made: list[Case], clients: int, seconds: float, seen: Seen) -> None:
    """Clients that come and go for a while."""
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients // 2)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        until = time.monotonic() + seconds

        async def busy(number: int) -> None:
            chance = random.Random(number)
            await asyncio.sleep(chance.random() * seconds / 4)
            while time.monotonic() < until:
                await one(client, chance.choice(made), seen, chance)

        await asyncio.gather(*(busy(i) for i in range(clients)))


def mixed(path: Path, minutes: float, clients: int) -> Iterator[Row]:
    """Waves of 20 seconds, each as high as 200 clients or a fraction of that."""
    made, seen, sizes = cases(path), Seen(), []
    with serving(str(path), "--ctx", "512", "--parallel", "16") as (url, pid):
        end, number = time.monotonic() + minutes * 60, 0
        while time.monotonic() < end:
            height = max(clients // (1, 4, 2)[number % 3], 1)
            asyncio.run(wave(url, made, height, 20, seen))
            sizes.append(resident(pid))
            number += 1
        live = _idle(url)
    seen.firsts.sort()
    seen.seconds.sort()
    what = f"{minutes:g} minutes, up to {clients} clients, {seen.answers} answers"
    yield Row(f"{what}: wrong texts", "0", str(seen.wrong), not seen.wrong and seen.answers > 0)
    failed = "; ".join(seen.failed[:3])
    yield Row("failed requests", "0", f"{len(seen.failed)} {failed}", not seen.failed)
    told = f"{seen.gone}; {seen.later} were told to come back"
    yield Row("clients that left", "some", told, seen.gone > 0)
    third = max(len(sizes) // 9 * 3, 1)  # whole rounds of the three heights
    before, after = (statistics.median(s) for s in (sizes[-2 * third : -third], sizes[-third:]))
    growth = after / before - 1
    found = f"{growth:+.1%}; {min(sizes) >> 20} to {max(sizes) >> 20} MiB in all"
    what = "memory, the last third of the time beside the one before"
    yield Row(what, "within 2 %", found, growth < 0.02)
    places = f"{live['running']} running, {live['waiting']} waiting"
    yield Row("places that are still taken", "0", places, not live["running"] + live["waiting"])
    for name, values in (("first token", seen.firsts), ("answer", seen.seconds)):
        found = ", ".join(f"p{p} {values[len(values) * p // 100]:.2f} s" for p in (50, 99))
        yield Row(f"time to the {name}", "shown", found)


def _idle(url: str) -> dict[str, Any]:
    for _ in range(100):
        live: dict[str, Any] = httpx.get(f"{url}/api/live", timeout=30).json()["models"][0]
        if not live["running"] and not live["waiting"]:
            return live
        time.sleep(0.1)
    return live


def waiting(path: Path) -> Iterator[Row]:
    """A short request that comes while a long prompt is read, and a stream that runs."""

    async def go(url: str) -> tuple[float, float, float, float]:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            warm = {"prompt": "Hello", "max_tokens": 40, "temperature": 0}
            await client.post("/v1/completions", json=warm)

            async def stream(body: dict[str, Any]) -> list[float]:
                times = [time.perf_counter()]
                async with client.stream(
                    "POST", "/v1/completions", json={**body, "stream": True}
                ) as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("data: {"):
                            times.append(time.perf_counter())
                return [b - a for a, b in pairwise(times)]

            no_end = {"0": -100, "2": -100}
            talk = {"prompt": "A story:", "max_tokens": 300, "logit_bias": no_end}
            running = asyncio.create_task(stream(talk))
            await asyncio.sleep(0.5)
            long = asyncio.create_task(stream({"prompt": LONG, "max_tokens": 1}))
            await asyncio.sleep(0.5)
            short = await stream({"prompt": "The capital of France is", "max_tokens": 4})
            gaps = await running
            return short[0], (await long)[0], max(gaps[5:]), sorted(gaps)[len(gaps) // 2]

    with serving(str(path), "--ctx", "6000", "--parallel", "4") as (url, _):
        short, long, gap, usual = asyncio.run(go(url))
    found = f"{short:.2f} s; the long one's came after {long:.2f} s"
    what = "first token of a short request while 4,000 tokens are read"
    yield Row(what, "under half of it", found, short < long / 2)
    found = f"{gap * 1e3:.0f} ms, {usual * 1e3:.0f} ms usually"
    yield Row("longest gap of a stream beside it", "bounded", found, gap < max(12 * usual, 0.3))


def cut(path: Path) -> Iterator[Row]:
    """At every byte of a request, and of the answer."""
    body = b'{"prompt": "Once upon a time", "max_tokens": 12, "stream": true, "temperature": 0}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(str(path), "--ctx", "512") as (url, _):
        port = int(url.rpartition(":")[2])
        answer = b""
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(whole)
            while b"[DONE]" not in answer:
                answer += sock.recv(4096)
        for n in range(1, len(whole)):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
                sock.sendall(whole[:n])
        for n in range(1, len(answer), 1 + len(answer) // 400):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
                sock.sendall(whole)
                left = n
                while left > 0 and (data := sock.recv(min(left, 4096))):
                    left -= len(data)
        live = _idle(url)
        began = time.monotonic()
        again = httpx.post(f"{url}/v1/completions", json=json.loads(body), timeout=30)
        again.raise_for_status()
        seconds = time.monotonic() - began
    stuck = live["running"] + live["waiting"]
    what = f"requests cut at each of {len(whole)} bytes, streams at 400: stuck places"
    yield Row(what, "0", str(stuck), stuck == 0)
    yield Row("the next request", "answered", f"in {seconds:.2f} s", seconds < 10)


def fuzzed(path: Path, number: int) -> Iterator[Row]:
    """Cases that schemathesis makes of /openapi.json."""
    words = ("--ctx", "128", "--max-tokens", "2", "--queue", "200")
    with serving(str(path), *words) as (url, _):
        tool = Path(sys.executable).parent / "schemathesis"
        each = max(number // 20, 1)
        command = [str(tool), "run", f"{url}/openapi.json", "--checks", "not_a_server_error"]
        command += ["--max-examples", str(each), "--workers", "4", "--continue-on-failure"]
        command += ["--phases", "fuzzing,coverage", "--generation-database", "none"]
        with tempfile.TemporaryDirectory() as folder:  # it leaves notes where it runs
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        alive = httpx.get(f"{url}/health", timeout=30).status_code == 200
    found = re.findall(r"(\d+) generated", done.stdout)
    said = " ".join(done.stdout.splitlines()[-3:])
    good = done.returncode == 0 and alive
    told = f"{', '.join(found)} cases; {said[-160:]}"
    yield Row("schemathesis: server errors", "0", told, good)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    os.sched_setaffinity(0, {1})
    path = model()
    parts = {
        "waiting": lambda: waiting(path),
        "cut": lambda: cut(path),
        "schemathesis": lambda: fuzzed(path, args.cases),
        "mixed": lambda: mixed(path, args.minutes, args.clients),
    }
    print("| | goal | found |\n|---|---|---|", flush=True)
    missed = 0
    for name, rows in parts.items():
        for row in rows() if args.only in ("", name) else ():
            missed += not row.reached
            mark = "" if row.reached else " **missed**"
            print(f"| {row.what} | {row.goal} | {row.found}{mark} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

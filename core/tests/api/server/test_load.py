"""Many at once: who waits, who is refused, who leaves; and what each of them reads."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def streamed(answer) -> str:
    """The text of a stream."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    return "".join(c["choices"][0]["text"] for c in chunks if c.get("choices"))


@pytest.fixture
def slow(scripted):
    """A model that writes for ever, 50 tokens a second."""
    return scripted(endless=True, delay=0.02, parallel=2, ctx=2048, ubatch=16)


def leave(running, body: dict, seconds: float) -> None:
    """Asks, waits so long, and goes without a word."""
    data = json.dumps(body).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port)) as sock:
        sock.sendall(head.encode() + data)
        time.sleep(seconds)


def test_beyond_the_queue_clients_are_told_to_come_back(serving, slow):
    model, _ = slow
    running = serving(model, queue=1)
    body = {"prompt": "go", "max_tokens": 20}
    with running.client() as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post(TEXT, json=body), range(8)))
    refused = [a for a in answers if a.status_code == 429]
    assert len(refused) == 5  # two write, one waits
    assert all(a.headers["Retry-After"] == "1" for a in refused)
    assert all(a.json()["error"]["code"] == "queue_full" for a in refused)
    assert [a.status_code for a in answers].count(200) == 3
    running.idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["prompt", "answer", "queue"])
def test_who_has_gone_costs_nothing_more(serving, slow, stream, when):
    """V03: within a step, whatever the request waits for."""
    model, script = slow
    running = serving(model)
    prompt = "word " * (200 if when == "prompt" else 1)
    body = {"prompt": prompt, "max_tokens": 10_000, "stream": stream}
    others = []
    if when == "queue":
        for _ in range(2):
            others.append(threading.Thread(target=_short, args=(running,)))
            others[-1].start()
        time.sleep(0.1)
    leave(running, body, 0.3)
    for one in others:
        one.join()
    began = time.monotonic()
    running.idle()
    assert time.monotonic() - began < 1
    computed = script.computed
    time.sleep(0.1)
    assert script.computed == computed
    with running.client() as client:
        assert client.post(TEXT, json={"prompt": "a", "max_tokens": 1}).status_code == 200


def _short(running) -> None:
    with running.client() as client:
        client.post(TEXT, json={"prompt": "go", "max_tokens": 30})


def test_an_abort_beside_a_long_prompt(serving, slow):
    """V04: A prefills, B is cut off, C and the health answer at once."""
    model, _ = slow
    running = serving(model)
    with ThreadPoolExecutor(2) as pool, running.client() as client:
        first = pool.submit(client.post, TEXT, json={"prompt": "a" * 300, "max_tokens": 3})
        with client.stream("POST", TEXT, json={"prompt": "b", "stream": True}) as answer:
            next(answer.iter_bytes())
        times = []
        for _ in range(10):
            began = time.monotonic()
            assert client.get("/health").status_code == 200
            times.append(time.monotonic() - began)
        third = client.post(TEXT, json={"prompt": "c", "max_tokens": 3})
        assert third.status_code == first.result().status_code == 200
    assert max(times) < 0.2
    running.idle()


def test_one_request_that_fails_ends_alone(serving, scripted):
    """And is told; in a stream as its last event."""
    model, script = scripted(endless=True, parallel=4)
    script.fails_at = 40
    running = serving(model)
    long, short = {"prompt": "go", "max_tokens": 100}, {"prompt": "go", "max_tokens": 20}
    with running.client() as client, ThreadPoolExecutor(3) as pool:
        bad = pool.submit(client.post, TEXT, json={**long, "temperature": 0})
        told = pool.submit(client.post, TEXT, json={**long, "temperature": 0, "stream": True})
        good = client.post(TEXT, json={**short, "temperature": 0})
        assert good.status_code == 200
        assert bad.result().status_code == 500
        assert "error" in bad.result().json()
        assert '"error"' in told.result().text
    running.idle()
    assert running.thread.is_alive()


PROMPTS = [
    "Once upon a time there was a dog. The dog was",
    "Once upon a time there was a dog. One day",
    "Once upon a time there was a cat who",
    "Lily and Tom went to the park. They",
]


def test_everybody_reads_what_they_would_alone(serving, load):
    """64 streams at once, with shared beginnings, stop strings, adapters and some who leave:
    V06, K04, and the rule that nothing of this changes a text."""
    from pathlib import Path

    adapter = Path(__file__).parents[2] / "data" / "oracles" / "llama-lora.gguf"
    model = load("llama", ctx=128, parallel=4, adapters={str(adapter): 1.0})
    alone = load("llama", ctx=128, parallel=1, adapters={str(adapter): 1.0})
    jobs = []
    for i in range(64):
        ids = [1 + (j * 7 + j // 20 * (i % 3)) % 300 for j in range(20 + i % 4 * 11)]
        more = [{}, {"adapters": {}}, {"adapters": {"llama-lora": 0.5}}][i % 3]
        sampling = {"temperature": 0.9, "seed": i} if i % 2 else {"temperature": 0}
        jobs.append({"prompt": ids, "max_tokens": 8 + i % 5, **more, **sampling})
    wanted = []
    for job in jobs:
        given = {k: v for k, v in job.items() if k != "prompt"}
        wanted.append(alone.generate(job["prompt"], **given).read())
    assert len(set(wanted)) > 20
    running = serving(model, queue=100)

    def ask(i: int) -> str | None:
        with running.client() as client:
            if i % 10 == 9:  # leaves in the middle
                body = {**jobs[i], "stream": True}
                with client.stream("POST", TEXT, json=body) as answer:
                    next(answer.iter_bytes(), None)
                return None
            answer = client.post(TEXT, json={**jobs[i], "stream": bool(i % 4)})
            assert answer.status_code == 200, answer.text
            return streamed(answer) if i % 4 else answer.json()["choices"][0]["text"]

    with ThreadPoolExecutor(64) as pool:
        got = list(pool.map(ask, range(64)))
    assert [g for g in got if g is not None] == [
        w for g, w in zip(got, wanted, strict=True) if g is not None
    ]
    running.idle()
    again = list(map(ask, (0, 1, 2)))
    assert again == wanted[:3]


@pytest.mark.parametrize("name", ["llama", "mamba", "lfm2", "gemma3", "phi3"])
def test_a_cached_answer_is_the_uncached_one(serving, load, name):
    """K01, K02, K04, K05: the same prompt again, one token more, one fewer, another in the
    middle; as a fresh model answers."""
    model, fresh = load(name, ctx=128, parallel=2), load(name, ctx=128)
    base = [5 + (i * 13) % 200 for i in range(40)]
    changed = [[*base[:at], 3, *base[at + 1 :]] for at in (0, 20, 39)]
    prompts = [base, base, [*base, 7], base[:-1], *changed, base]
    running = serving(model)
    cached = []
    with running.client() as client:
        for ids in prompts:
            body = {"prompt": ids, "max_tokens": 6, "temperature": 0}
            told = client.post(TEXT, json=body).json()
            wanted = fresh.generate(ids, max_tokens=6, temperature=0).read()
            assert told["choices"][0]["text"] == wanted
            cached.append(told["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    if name in ("llama", "phi3"):
        assert cached[1:] == [39, 40, 38, 0, 20, 39, 39]
    elif name == "mamba":
        assert cached[2] == 40


def test_a_system_prompt_is_computed_once(serving, talking):
    """Also for those who ask at the same time."""
    running = serving(talking)
    system = {"role": "system", "content": "Lily likes to tell stories about her dog. " * 4}

    def ask(i: int) -> dict:
        messages = [system, {"role": "user", "content": f"story {i}"}]
        with running.client() as client:
            body = {"messages": messages, "max_tokens": 4, "temperature": 0}
            return client.post(CHAT, json=body).json()["usage"]

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(ask, range(4)))
    cached = sorted(t["prompt_tokens_details"]["cached_tokens"] for t in told)
    shared = len(talking.chat_prompt([system]))
    assert cached[0] == 0
    assert all(n > shared // 2 for n in cached[1:])
    live = running.pool.first.live()
    assert live["cached_tokens"] == sum(cached)


def test_drain_lets_answers_end(serving, slow):
    """The first signal: nothing new, and what was begun is finished."""
    model, _ = slow
    running = serving(model, drain_seconds=10)
    with running.client() as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, TEXT, json={"prompt": "go", "max_tokens": 40})
        time.sleep(0.2)
        running.server.handle_exit(15, None)
        time.sleep(0.2)
        with pytest.raises(httpx.HTTPError), running.client() as other:
            other.post(TEXT, json={"prompt": "a", "max_tokens": 1}).raise_for_status()
        assert answer.result().json()["usage"]["completion_tokens"] == 40
    running.thread.join(5)
    assert not running.thread.is_alive()


def test_the_second_signal_stops(serving, slow):
    model, _ = slow
    running = serving(model, drain_seconds=60)
    body = {"prompt": "go", "max_tokens": 1500, "stream": True}
    with running.client() as client, ThreadPoolExecutor(1) as pool:
        pool.submit(client.post, TEXT, json=body)
        time.sleep(0.2)
        began = time.monotonic()
        running.server.handle_exit(15, None)
        running.server.handle_exit(15, None)
        running.thread.join(5)
        assert not running.thread.is_alive()
        assert time.monotonic() - began < 3


def test_drain_is_bounded(serving, slow):
    model, _ = slow
    running = serving(model, drain_seconds=0.3)
    body = {"prompt": "go", "max_tokens": 1500, "stream": True}
    with running.client() as client, ThreadPoolExecutor(1) as pool:
        pool.submit(client.post, TEXT, json=body)
        time.sleep(0.2)
        running.server.handle_exit(15, None)
        running.thread.join(5)
        assert not running.thread.is_alive()


def test_who_does_not_read_is_left(serving, slow):
    """A client that takes nothing of a long stream holds no place for ever."""
    model, script = slow
    script.delay = 0.0
    running = serving(model, write_seconds=0.5)
    body = json.dumps({"prompt": "go", "max_tokens": 2000, "stream": True, "n": 2}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", running.port))
        sock.sendall(head % len(body) + body)
        running.idle()

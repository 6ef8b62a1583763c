"""Several models: loaded when they are asked for, closed for others or when idle; replicas."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import umbel
from umbel import host
from umbel.errors import DeviceError, ModelFormatError

ORACLES = Path(__file__).parents[2] / "data" / "oracles"
TEXT = "/v1/completions"


def entry(name: str, loads: list[str]):
    """A model that is loaded when it is asked for; notes that it was."""
    path = ORACLES / f"{name}.gguf"

    def load(avoided=()):
        loads.append(name)
        return [umbel.load(path, device="host", ctx=64)]

    return path, load


def ask(client, name: str):
    body = {"model": name, "prompt": [1, 2, 3], "max_tokens": 3, "temperature": 0}
    return client.post(TEXT, json=body)


def test_models_are_loaded_once_and_when_asked_for(serving):
    loads: list[str] = []
    running = serving({n: entry(n, loads) for n in ("llama", "qwen2", "gpt2")})
    with running.client() as client, ThreadPoolExecutor(6) as pool:
        names = ["llama", "qwen2"] * 3
        answers = list(pool.map(lambda n: ask(client, n), names))
        assert [a.json()["model"] for a in answers] == names
        assert sorted(loads) == ["llama", "qwen2"]
        live = {m["id"]: m["loaded"] for m in client.get("/api/live").json()["models"]}
        assert live == {"llama": True, "qwen2": True, "gpt2": False}


def test_who_was_used_longest_ago_makes_room(serving):
    loads: list[str] = []
    entries = {n: entry(n, loads) for n in ("llama", "qwen2", "gpt2")}
    sizes = []
    for name in entries:
        with umbel.load(ORACLES / f"{name}.gguf", device="host", ctx=64) as model:
            states = sum(t.nbytes for t in model.runner.states.tensors.values())
            sizes.append(states + model.runner.weights.total)
    budget = max(sizes) * 2  # two of them
    running = serving(entries, budget=budget)
    with running.client() as client:
        for name in ("llama", "qwen2", "gpt2", "llama", "qwen2"):
            assert ask(client, name).status_code == 200
            taken = sum(o.nbytes for o in running.pool.served.values() if o.replicas)
            assert taken <= budget
    assert len(loads) > 3


def test_a_model_larger_than_all_memory_is_refused(serving):
    running = serving({"llama": entry("llama", [])}, budget=1000)
    with running.client() as client:
        answer = ask(client, "llama")
    assert answer.status_code == 503
    assert "larger than the memory" in answer.json()["error"]["message"]


def test_an_idle_model_is_closed(serving):
    loads: list[str] = []
    running = serving({"llama": entry("llama", loads)}, idle=0.2)
    with running.client() as client:
        assert ask(client, "llama").status_code == 200
        until = time.monotonic() + 5
        while running.pool.first.replicas:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert ask(client, "llama").status_code == 200
    assert loads == ["llama", "llama"]


def test_a_model_that_cannot_be_loaded(serving, tmp_path):
    """503, and the health says why; the file's place is not told."""

    def fail(avoided=()):
        msg = "the file is truncated"
        raise ModelFormatError(msg, where=tmp_path / "secret.gguf")

    running = serving({"bad": (tmp_path / "secret.gguf", fail), "llama": entry("llama", [])})
    with running.client() as client:
        answer = ask(client, "bad")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_loaded")
        assert "secret" not in answer.text
        assert ask(client, "llama").status_code == 200
        assert client.get("/health").status_code == 503


@pytest.mark.parametrize("n", [2, 3])
def test_replicas_share_the_work(serving, load, n):
    """A prompt goes where most of it is computed; others to who has the least to do."""
    models = [load("llama", ctx=128, parallel=1) for _ in range(n)]
    running = serving({"test": models}, queue=50)
    wanted = models[0].generate([7] * 20 + [1], max_tokens=4, temperature=0).read()
    with running.client() as client, ThreadPoolExecutor(n) as pool:

        def told(i: int, last: int):
            body = {"prompt": [7 + i] * 20 + [last], "max_tokens": 4, "temperature": 0}
            return client.post(TEXT, json=body).json()

        list(pool.map(lambda i: told(i, 1), range(n)))
        for i in range(n):
            again = told(i, 2)
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 20
        assert told(0, 1)["choices"][0]["text"] == wanted
    live = running.pool.first.live()
    assert (live["parallel"], len(live["devices"])) == (n, n)


def test_what_a_device_fails_is_loaded_anew_and_then_elsewhere(serving, add_backend):
    """Twice in a row: first again, as faults pass; then without that device; 503 when none is
    left. A stream that fails counts, too."""
    broken = {"n": 0}

    def compute(device, graph):
        if broken["n"]:
            msg = "the device says no"
            raise DeviceError(msg)
        return host.graph_compute(device, graph)

    add_backend("odd", graph_compute=compute)
    loads = []

    def load(avoided):
        loads.append(set(avoided))
        left = [d for d in ("odd:0", "host:0") if d not in avoided]
        if not left:
            raise DeviceError("no device is left")
        return [umbel.load(ORACLES / "llama.gguf", device=left[0], ctx=64)]

    running = serving({"llama": (ORACLES / "llama.gguf", load)})
    with running.client() as client:
        good = ask(client, "llama").json()["choices"][0]["text"]
        broken["n"] = 1
        for _ in range(2):
            assert ask(client, "llama").status_code == 500
            body = {"prompt": [1, 2, 3], "max_tokens": 3, "stream": True}
            assert '"error"' in client.post(TEXT, json=body).text
            running.idle()
        answer = ask(client, "llama")
        assert answer.json()["choices"][0]["text"] == good
    assert loads == [set(), set(), {"odd:0"}]

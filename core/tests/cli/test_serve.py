"""`umbel serve`: what it is told, what it says, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

MODEL = Path(__file__).parents[1] / "data" / "oracles" / "stories260K.gguf"


@pytest.fixture
def serve(tmp_path) -> Iterator:
    """serve(words): the process, and where it listens."""
    processes = []

    def start(*words: object) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "umbel", "serve", *map(str, words)]
        command += ["--port", "0", "--device", "host", "--ctx", "128"]
        env = {k: v for k, v in os.environ.items() if k != "UMBEL_API_KEY"}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        processes.append(process)
        assert process.stderr is not None
        told = ""
        for line in process.stderr:
            told += line
            if found := re.search(r"http://\S+:\d+", line):
                return process, found[0]
        raise AssertionError(told)

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_and_ends(serve, sent):
    process, url = serve(MODEL)
    body = {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}
    told = httpx.post(f"{url}/v1/completions", json=body, timeout=30).json()
    assert told["model"] == "stories260K"
    assert told["usage"]["completion_tokens"] == 5
    began = time.monotonic()
    process.send_signal(sent)
    assert process.wait(10) == 0
    assert time.monotonic() - began < 5
    assert "Traceback" not in process.stderr.read()


def test_models_have_names(serve, tmp_path):
    copy = tmp_path / "other.gguf"
    copy.write_bytes(MODEL.read_bytes())
    _, url = serve(f"story={MODEL}", copy, "--replicas", 2)
    listed = httpx.get(f"{url}/v1/models").json()["data"]
    assert [m["id"] for m in listed] == ["story", "other"]
    live = httpx.get(f"{url}/api/live").json()["models"]
    assert [m["loaded"] for m in live] == [True, False]
    assert live[0]["parallel"] == 8
    body = {"model": "other", "prompt": "Once", "max_tokens": 2}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=30).status_code == 200


def test_keys_of_a_file(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n\ntwo\n")
    _, url = serve(MODEL, "--api-key-file", keys)
    assert httpx.get(f"{url}/props").status_code == 401
    for key in ("one", "two"):
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{url}/props", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "MODEL is missing"),
        (["nothing.gguf"], "nothing.gguf"),
        ([MODEL, "--host", "0.0.0.0"], "--no-auth"),
        ([MODEL, "--port", "70000"], "--port"),
        ([MODEL, "--parallel", "0"], "--parallel"),
        ([MODEL, "--replicas", "0"], "--replicas"),
        ([MODEL, "--memory", "much"], "6G"),
        ([MODEL, MODEL], "NAME=MODEL"),
        ([MODEL, "--api-key-file", "nothing"], "--api-key-file"),
    ],
)
def test_what_it_refuses(umbel, words, named):
    done = umbel("serve", *map(str, words))
    assert done.code == 2
    assert named in done.err


def test_an_address_that_is_taken(umbel):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = umbel("serve", str(MODEL), "--port", port, "--device", "host")
    assert done.code == 2
    assert "cannot be listened on" in done.err

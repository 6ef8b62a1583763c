"""Who may ask, from where, and how slowly."""

from __future__ import annotations

import re
import socket
import time

import pytest
from umbel.server.guard import is_loopback

TEXT = "/v1/completions"
BODY = {"prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def model(load):
    return load("llama", parallel=2)


def test_a_key_is_asked_for(serving, model):
    running = serving(model, keys=("secret", "other"), local_only=False)
    with running.client() as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            answer = client.post(TEXT, json=BODY, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for headers in (
            {"Authorization": "Bearer secret"},
            {"authorization": "bearer other"},
            {"X-API-Key": "secret"},
        ):
            assert client.post(TEXT, json=BODY, headers=headers).status_code == 200
        assert client.get("/health").status_code == 200
        for path in ("/metrics", "/props", "/slots", "/api/live", "/v1/models"):
            assert client.get(path).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example"])
def test_a_name_that_was_made_to_point_here(serving, model, host):
    """DNS rebinding: the browser of who runs the server is not to be used against it."""
    with serving(model).client() as client:
        answer = client.post(TEXT, json=BODY, headers={"Host": host})
        assert answer.status_code == 403
        for good in ("localhost", "127.0.0.1:1", "[::1]:80", "LOCALHOST"):
            status = client.post(TEXT, json=BODY, headers={"Host": good}).status_code
            assert status == (200 if good != "LOCALHOST" else status)


def test_pages_of_others(serving, model):
    """CORS is off; what is named may ask."""
    origin = {"Origin": "https://chat.example"}
    with serving(model).client() as client:
        assert client.post(TEXT, json=BODY, headers=origin).status_code == 403
        own = {"Origin": f"http://{client.base_url.host}:{client.base_url.port}"}
        assert client.post(TEXT, json=BODY, headers=own).status_code == 200
    with serving(model, origins=("https://chat.example",)).client() as client:
        asked = client.options(
            TEXT, headers={**origin, "Access-Control-Request-Method": "POST"}
        )
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == origin["Origin"]
        answer = client.post(TEXT, json=BODY, headers=origin)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin["Origin"]
        other = {"Origin": "https://other.example"}
        assert client.post(TEXT, json=BODY, headers=other).status_code == 403


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("192.168.1.4", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback(host, here):
    assert is_loopback(host) is here


def closed_after(port: int, data: bytes) -> float:
    """Seconds until the server ends a connection on which this is all that comes."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(10)
        began = time.monotonic()
        sock.sendall(data)
        while sock.recv(4096):
            pass
        return time.monotonic() - began


@pytest.mark.parametrize("data", [b"", b"GET", HEAD[:40], HEAD])
def test_a_head_that_does_not_come(serving, model, data):
    running = serving(model, header_seconds=0.4)
    assert 0.2 < closed_after(running.port, data) < 5
    running.idle()


def test_a_body_that_does_not_come(serving, model):
    running = serving(model, body_seconds=0.4, keep_alive_seconds=0.3)
    data = HEAD + b"Content-Length: 100\r\n\r\n{"
    assert 0.2 < closed_after(running.port, data) < 5
    running.idle()


def test_a_connection_that_is_idle_after_an_answer(serving, model):
    running = serving(model, keep_alive_seconds=0.4)
    data = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert 0.2 < closed_after(running.port, data) < 5
    again = serving(model, header_seconds=0.4, keep_alive_seconds=30)
    assert 0.2 < closed_after(again.port, data + b"GET /hea") < 5


def test_many_connections(serving, model):
    """Beyond the bound they are refused, and the health is told all the same."""
    running = serving(model, streams=0)
    with running.client() as client:
        answer = client.get("/props")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert client.get("/health").status_code == 200


def test_the_page_and_its_files(serving, model):
    """All that it names is there, is its own, and its policy takes nothing from elsewhere."""
    with serving(model, keys=("secret",), local_only=False).client() as client:
        page = client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        named = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page.text))
        assert len(named) > 3
        for name in named:
            file = client.get(f"/{name}")
            assert file.status_code == 200, name
            assert "default-src 'self'" in file.headers["content-security-policy"]
            assert file.headers["x-content-type-options"] == "nosniff"
            kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
            assert file.headers["content-type"].startswith(kind[name.rpartition(".")[2]])
            for inner in re.findall(r"""from ['"]\./([\w.]+)['"]""", file.text):
                assert client.get(f"/page/{inner}").status_code == 200, inner
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|<style|style=", page.text)
        assert not re.search(r"https?://(?!www\.w3\.org)", page.text)


@pytest.mark.parametrize("at", [*range(1, 60, 7), 120, 150, 200, 230])
def test_requests_cut_anywhere(serving, model, at):
    """No hang, and no place that stays taken."""
    running = serving(model)
    body = b'{"prompt": [1, 2, 3], "max_tokens": 5, "stream": true}'
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", running.port)) as sock:
        sock.sendall(whole[:at])
    running.idle()
    with running.client() as client:
        assert client.post(TEXT, json=BODY).status_code == 200

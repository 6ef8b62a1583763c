"""What a request may not be: each is refused with its field named, and nothing is computed."""

from __future__ import annotations

import json

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def client(serving, talking):
    with serving(talking, body=1 << 16, n=4).client() as made:
        yield made


def refused(answer, status=400):
    """The error, in OpenAI's form."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


ODD = (-1, -(2**31), 2**63, 1e308, True, "5", [5], {})
INTEGERS = ("max_tokens", "n", "top_k", "logprobs", "seed", "best_of", "draft_max", "mirostat")


@pytest.mark.parametrize("field", INTEGERS)
def test_odd_whole_numbers(client, field):
    """V08. -1 is a number that some of them take."""
    for value in ODD:
        if value == -1 and field in ("max_tokens", "seed", "top_k"):
            continue
        if field == "seed" and value in (2**63, True):
            pass
        error = refused(client.post(TEXT, json={"prompt": "a", field: value}))
        assert field in (error["param"] or "") or field in error["message"], value


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "seed", "frequency_penalty"])
def test_what_is_no_number(client, field, text):
    body = f'{{"prompt": "a", "max_tokens": 1, "{field}": {text}}}'
    refused(client.post(TEXT, content=body.encode()))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [10**9]}, "token id"),
        ({"prompt": [-1]}, "token id"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a", "stop": [5]}, "stop"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop"),
        ({"prompt": "a", "stop": "x" * 257}, "stop"),
        ({"prompt": "a", "n": 5}, "n"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "logprobs"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": 3}, "logit_bias"),
        ({"prompt": "a", "stream": "yes"}, "stream"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "top_p": 2}, "top_p"),
        ({"prompt": "a", "grammar": "x" * 70000}, "body"),
        ({"prompt": "a", "grammar": "root ::= ("}, "grammar"),
        ({"prompt": "a", "json_schema": {"type": "what"}}, "json_schema"),
        ({"prompt": "a", "adapters": {"none": 1}}, "adapters"),
        ({"prompt": "a", "lora": [{"id": 7}]}, "id"),
        ({"prompt": "a", "samplers": ["magic"]}, "samplers"),
        ({"prompt": "word " * 600}, "fit"),
    ],
)
def test_completions(client, body, named):
    answer = client.post(TEXT, json=body)
    error = refused(answer, 413 if named == "body" else 400)
    assert named in f"{error['param']} {error['message']}"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://x"}}],
                    }
                ]
            },
            "text",
        ),
        ({"messages": HELLO, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": HELLO, "response_format": {"type": "json_schema"}}, "json_schema"),
        ({"messages": HELLO, "tools": [{}]}, "tools[0].function"),
        (
            {"messages": HELLO, "tools": [{"function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        ({"messages": HELLO, "tools": [{"function": {"name": "a"}}] * 2}, "same name"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        (
            {
                "messages": HELLO,
                "tools": [{"function": {"name": "a"}}],
                "tool_choice": {"function": {"name": "b"}},
            },
            "tool_choice",
        ),
        ({"messages": HELLO, "modalities": ["audio"]}, "modalities"),
        ({"messages": HELLO, "max_completion_tokens": -5}, "max_completion_tokens"),
    ],
)
def test_chats(client, body, named):
    error = refused(client.post(CHAT, json=body))
    assert named in f"{error['param']} {error['message']}"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        ('{"prompt": "\u6b6a"}'.encode("gbk"), 400),
        (b'{"prompt": "a", "n": 1' + b"0" * 5000 + b"}", 400),
        (b"[" * 60000, 400),
        (b" " * 70000, 413),
    ],
)
def test_bodies(client, content, status):
    """V11: the server lives on."""
    refused(client.post(TEXT, content=content), status)
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "\U0001f468\u200d"])
def test_odd_characters(client, text):
    """They are answered or refused, and do not break the answer."""
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 2})
    answer = client.post(CHAT, content=body.encode())
    assert answer.status_code in (200, 400)
    answer.json()
    bad = json.dumps({"messages": HELLO, "stop": [text], "n": "\ud800"})
    refused(client.post(CHAT, content=bad.encode()))


def test_a_form_is_no_json(client):
    """What a page of somebody else's can send without asking is not taken."""
    answer = client.post(
        TEXT, content=b'{"prompt":"a"}', headers={"Content-Type": "text/plain"}
    )
    refused(answer, 415)


def test_paths_and_methods(client):
    refused(client.get("/nothing"), 404)
    refused(client.get(TEXT), 405)
    refused(client.get("/page/..%2fapp.py"), 404)
    refused(client.get("/page/.hidden"), 404)
    refused(client.get("/api/none/status"), 404)


def test_an_unknown_model_is_told_where_there_are_several(serving, talking, load):
    with serving({"one": talking, "two": load("llama")}).client() as client:
        body = {"prompt": "a", "max_tokens": 1}
        assert client.post(TEXT, json={**body, "model": "two"}).json()["model"] == "two"
        error = refused(client.post(TEXT, json={**body, "model": "three"}), 404)
        assert error["code"] == "model_not_found"
        assert "one, two" in error["message"]


@pytest.mark.parametrize("n", [199, 200, 201])
def test_prompts_at_the_edge_of_the_context(serving, load, n):
    """V07: one that leaves no room for an answer is refused with both numbers."""
    model = load("llama", ctx=200)
    with serving(model).client() as client:
        body = {"prompt": [5] * n, "max_tokens": 1024, "temperature": 0}
        answer = client.post(TEXT, json=body)
    if n < 200:
        assert answer.json()["choices"][0]["finish_reason"] in ("length", "stop")
        assert answer.json()["usage"]["completion_tokens"] == 1
        return
    error = refused(answer)
    assert error["code"] == "context_length_exceeded"
    assert "199" in error["message"]
    assert str(n) in error["message"]


@pytest.mark.parametrize("tokens", [0, 1, -1, None])
def test_how_long_an_answer_is(serving, load, tokens):
    """S06."""
    with serving(load("llama", ctx=32)).client() as client:
        body = {"prompt": [1, 2, 3], "max_tokens": tokens, "temperature": 0}
        told = client.post(TEXT, json=body).json()
    n = told["usage"]["completion_tokens"]
    assert n == tokens if tokens in (0, 1) else n > 1
    assert told["choices"][0]["finish_reason"] in ("length", "stop")


def test_what_is_asked_for_is_bounded_by_the_server(serving, load):
    with serving(load("llama"), max_tokens=3).client() as client:
        for asked in (None, 50, 2):
            body = {"prompt": [1, 2, 3], "max_tokens": asked, "temperature": 0}
            n = client.post(TEXT, json=body).json()["usage"]["completion_tokens"]
            assert n == min(asked or 3, 3)

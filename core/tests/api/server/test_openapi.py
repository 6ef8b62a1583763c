"""The document for machines: it has all paths, and what it lets through is answered."""

from __future__ import annotations

import jsonschema
import pytest
from umbel.server.app import ROUTES
from umbel.server.limits import Limits
from umbel.server.openapi import document


def test_it_has_every_path():
    told = document(Limits())
    assert told["openapi"].startswith("3.1")
    wanted = {(path.replace(":path", ""), m.lower()) for path, _, ms in ROUTES for m in ms}
    assert {(path, m) for path, ms in told["paths"].items() for m in ms} == wanted


@pytest.mark.parametrize(
    ("path", "body", "good"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}, True),
        ("/v1/completions", {"prompt": [[1], "b"], "max_tokens": 1, "n": 2}, True),
        ("/v1/completions", {"max_tokens": 1}, False),
        ("/v1/completions", {"prompt": "a", "top_p": 2}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, True),
        ("/v1/chat/completions", {"messages": []}, False),
        ("/completion", {"prompt": "a", "n_predict": 2, "n_keep": -1}, True),
        ("/completion", {"prompt": "a", "n": 2}, False),
        ("/detokenize", {"tokens": [5, 6]}, True),
        ("/detokenize", {"tokens": [-1]}, False),
    ],
)
def test_it_says_what_the_server_does(serving, talking, path, body, good):
    with serving(talking, max_tokens=2).client() as client:
        told = client.get("/openapi.json").json()
        content = told["paths"][path]["post"]["requestBody"]["content"]
        checker = jsonschema.Draft202012Validator(content["application/json"]["schema"])
        assert checker.is_valid(body) is good
        answer = client.post(path, json=body)
        assert answer.status_code == (200 if good else 400), answer.text
        if not good:
            error = told["components"]["schemas"]["Error"]
            jsonschema.validate(answer.json(), error)

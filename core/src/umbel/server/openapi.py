"""GET /openapi.json: what there is, for machines (OpenAPI 3.1).

Only what the server looks at is told; a field that is not is left out of account.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from umbel import __version__
from umbel.server import state
from umbel.server.errors import json_response
from umbel.server.limits import Limits

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
STATUSES = (400, 401, 403, 404, 405, 408, 413, 415, 429, 500, 503)


def whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def _some(items: Schema, most: int, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _sampling(limits: Limits) -> dict[str, Schema]:
    stop = {**TEXT, "maxLength": limits.stop_length}
    return {
        "model": TEXT,
        "stream": FLAG,
        "stream_options": {"type": "object", "properties": {"include_usage": FLAG}},
        "max_tokens": whole(-1, 1 << 31),
        "n": whole(1, limits.n),
        "stop": _either(stop, _some(stop, limits.stops)),
        "seed": whole(-1, 1 << 62),
        "temperature": number(0, 1e9),
        "top_k": whole(-1, (1 << 31) - 1),
        "top_p": number(0, 1),
        "min_p": number(0, 1),
        "frequency_penalty": number(-1e9, 1e9),
        "presence_penalty": number(-1e9, 1e9),
        "repeat_penalty": number(1e-6, 1e6),
        "logit_bias": {"type": "object", "additionalProperties": number(-1e9, 1e9)},
        "adapters": {"type": "object", "additionalProperties": number(-1e3, 1e3)},
        "lora": _some({"type": "object", "properties": {"id": whole(0, 1 << 20)}}, 16),
        "json_schema": OBJECT,
        "regex": TEXT,
        "grammar": TEXT,
        "response_format": {
            "type": "object",
            "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
        },
    }


def _message() -> Schema:
    part = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": TEXT},
        "required": ["type", "text"],
    }
    return {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool", "developer"]},
            "content": _either(TEXT, {"type": "null"}, _some(part, 64)),
            "name": TEXT,
            "tool_calls": _some(OBJECT, 64),
            "tool_call_id": TEXT,
        },
        "required": ["role"],
    }


def _bodies(limits: Limits) -> dict[str, tuple[dict[str, Schema], list[str]]]:
    """The properties of each body, and those that are needed."""
    shared = _sampling(limits)
    prompt = _either(TEXT, IDS, _some(_either(TEXT, IDS), limits.n, 1))
    texts = _either(TEXT, IDS, _some(_either(TEXT, IDS), limits.inputs, 1))
    function = {
        "type": "object",
        "properties": {"name": {**TEXT, "pattern": "^[a-zA-Z0-9_-]{1,64}$"}},
        "required": ["name"],
    }
    tool = {"type": "object", "properties": {"function": function}, "required": ["function"]}
    messages = _some(_message(), 1 << 12, 1)
    return {
        "/v1/chat/completions": (
            {
                **shared,
                "messages": messages,
                "max_completion_tokens": whole(-1, 1 << 31),
                "logprobs": FLAG,
                "top_logprobs": whole(0, 20),
                "tools": _some(tool, 128),
                "tool_choice": _either({"enum": ["auto", "none", "required"]}, tool),
                "parallel_tool_calls": FLAG,
            },
            ["messages"],
        ),
        "/v1/completions": (
            {**shared, "prompt": prompt, "echo": FLAG, "logprobs": whole(0, 20)},
            ["prompt"],
        ),
        "/v1/embeddings": (
            {"model": TEXT, "input": texts, "encoding_format": {"enum": ["float", "base64"]}},
            ["input"],
        ),
        "/completion": (
            {
                **shared,
                "prompt": prompt,
                "n": whole(1, 1),
                "n_predict": whole(-1, 1 << 31),
                "n_keep": whole(-1, 1 << 31),
                "n_probs": whole(0, 100),
                "context_shift": FLAG,
            },
            ["prompt"],
        ),
        "/tokenize": ({"content": TEXT, "add_special": FLAG, "with_pieces": FLAG}, []),
        "/detokenize": ({"tokens": _some(whole(0, 1 << 31), 1 << 20)}, []),
        "/apply-template": ({"messages": messages}, ["messages"]),
    }


def document(limits: Limits) -> Schema:
    """The document of a server with these limits."""
    from umbel.server.app import ROUTES

    bodies, paths = _bodies(limits), dict[str, Schema]()
    error = {"$ref": "#/components/schemas/Error"}
    refusals = {
        str(status): {
            "description": "refused" if status < 500 else "not now",
            "content": {"application/json": {"schema": error}},
        }
        for status in STATUSES
    }
    for path, _, methods in ROUTES:
        plain = path.replace(":path", "")
        names = [part[1:-1] for part in plain.split("/") if part.startswith("{")]
        for method in methods:
            given: Schema = {"responses": {"200": {"description": "the answer"}, **refusals}}
            given["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": TEXT} for name in names
            ]
            if method == "POST" and path in bodies:
                properties, needed = bodies[path]
                schema = {"type": "object", "properties": properties, "required": needed}
                content = {"application/json": {"schema": schema}}
                given["requestBody"] = {"required": True, "content": content}
            paths.setdefault(plain, {})[method.lower()] = given
    return {
        "openapi": "3.1.0",
        "info": {"title": "Umbel", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": _error()}},
    }


def _error() -> Schema:
    nullable = {"type": ["string", "null"]}
    fields = {"message": TEXT, "type": TEXT, "param": nullable, "code": nullable}
    inner = {"type": "object", "properties": fields, "required": [*fields]}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}


async def endpoint(request: Request) -> Response:
    return json_response(document(state.of(request).limits))

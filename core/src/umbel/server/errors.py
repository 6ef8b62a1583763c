"""Errors as OpenAI's clients read them: a status, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from umbel.errors import (
    ContextFullError,
    OptionError,
    SamplingError,
    TemplateError,
    TokenizerError,
    UmbelError,
)

OF_REQUESTS = (OptionError, SamplingError, TemplateError, TokenizerError, ContextFullError)
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class HttpError(UmbelError):
    """What a request is refused with, other than for what is in its fields."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(what, **fields)
        self.status = status
        self.code = code
        self.headers = headers or {}


def status_of(error: BaseException) -> int:
    if isinstance(error, HttpError):
        return error.status
    return 400 if isinstance(error, OF_REQUESTS) else 500


def told(error: BaseException) -> dict[str, Any]:
    """The error as JSON. What failed here and is no request's fault names no file of ours."""
    status = status_of(error)
    message, param, code = "the server failed; its log tells how", None, None
    if isinstance(error, UmbelError):
        message, where = error.what, error.where
        if error.expected is not None:
            message += f": expected {error.expected}"
        if error.got is not None and status < 500:
            message += f", got {error.got}"
        if error.do is not None:
            message += f"; {error.do}"
        param = where if isinstance(where, str) and status < 500 else None
    if isinstance(error, HttpError):
        code = error.code
    elif isinstance(error, ContextFullError):
        code = "context_length_exceeded"
    kind = KINDS.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def to_json(data: object) -> bytes:
    """UTF-8; half a surrogate pair, which clients can send, does not break the answer."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(
    data: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(to_json(data), status, headers, media_type="application/json")


def response(error: BaseException) -> Response:
    headers = error.headers if isinstance(error, HttpError) else None
    return json_response(told(error), status_of(error), headers)

"""GET /: the page. Its files are plain; the browser is told to take nothing from elsewhere."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from umbel.server.errors import HttpError

FOLDER = Path(__file__).parent / "page"
POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
TYPES = {".js": "text/javascript", ".svg": "image/svg+xml"}


async def index(request: Request) -> Response:
    return _file("index.html")


async def favicon(request: Request) -> Response:
    return _file("favicon.svg")


async def file(request: Request) -> Response:
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    """One of the folder's own files, by its name alone."""
    path = FOLDER / name
    if path.parent != FOLDER or name.startswith(".") or not path.is_file():
        msg = "there is no such file"
        raise HttpError(404, msg)
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(name)[0] or "text/plain"
    return Response(path.read_bytes(), headers=HEADERS, media_type=kind)

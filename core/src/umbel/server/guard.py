"""What stands before all endpoints: keys, origins, hosts, and how much there may be at once."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Sequence

import attrs
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umbel.server.errors import HttpError, response
from umbel.server.limits import Limits

OPEN = ("/", "/health", "/v1/health", "/favicon.ico")  # need no key
OPEN_FOLDER = "/page/"
METHODS = "GET, POST, OPTIONS"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@attrs.frozen(kw_only=True)
class Access:
    """Who may ask. `keys` are digests of API keys; none: everybody may.

    Without keys a request has to name this machine as its host: a page of somebody else's,
    open in a browser here, is kept out even where its name was made to point to us.
    """

    keys: tuple[bytes, ...] = ()
    origins: tuple[str, ...] = ()  # of pages that may ask; "*": any
    local_only: bool = True

    @classmethod
    def of(cls, keys: Iterable[str], origins: Sequence[str], *, local_only: bool) -> Access:
        digests = tuple(_digest(key) for key in keys)
        return cls(keys=digests, origins=tuple(origins), local_only=local_only)

    def knows(self, given: str) -> bool:
        """Whether it is a key; takes as long whichever it is, or none."""
        digest, found = _digest(given), False
        for key in self.keys:
            found |= hmac.compare_digest(digest, key)
        return found

    def allows(self, origin: str) -> bool:
        return "*" in self.origins or origin in self.origins


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@attrs.define(eq=False)
class Guard:
    """Middleware (ASGI). It refuses before anything is read or computed."""

    app: ASGIApp
    access: Access
    limits: Limits
    open: int = 0  # requests under way
    draining: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            refusal = self._refusal(scope, headers)
        except HttpError as error:
            refusal = response(error)
        sender = self._sender(send, headers.get("origin"))
        if refusal is not None:
            await refusal(scope, receive, sender)
            return
        self.open += 1
        try:
            await self.app(scope, receive, sender)
        finally:
            self.open -= 1

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """An answer that ends it here, or None; raises what is no answer but a refusal."""
        origin, host = headers.get("origin"), headers.get("host", "")
        self._check_host(host)
        if origin is not None and not self._same(origin, host, scope["scheme"]):
            if not self.access.allows(origin):
                msg = "pages of other origins may not ask"
                raise HttpError(403, msg, got=origin, do="start the server with --cors ORIGIN")
            if scope["method"] == "OPTIONS":
                return Response(status_code=204)
        if scope["path"] != "/health" and self.open >= self.limits.streams:
            msg = "too many requests are open"
            raise HttpError(503, msg, headers={"Retry-After": "1"})
        if self.draining and scope["path"] not in OPEN:
            msg = "the server is about to stop"
            raise HttpError(503, msg, headers={"Retry-After": "5", "Connection": "close"})
        self._check_key(scope["path"], headers)
        return None

    def _check_host(self, host: str) -> None:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self.access.local_only and not is_loopback(name):
            msg = "the request is for another host"
            do = "ask for localhost, or start the server with an API key"
            raise HttpError(403, msg, expected="localhost or 127.0.0.1", got=name, do=do)

    def _same(self, origin: str, host: str, scheme: str) -> bool:
        return origin in (f"{scheme}://{host}", f"https://{host}", f"http://{host}")

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self.access.keys or path in OPEN or path.startswith(OPEN_FOLDER):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        given = given if kind.lower() == "bearer" else headers.get("x-api-key", "")
        if not self.access.knows(given.strip()):
            msg = "the API key is missing or not one of this server's"
            do = "send the header Authorization: Bearer KEY"
            challenge = {"WWW-Authenticate": "Bearer"}
            raise HttpError(401, msg, code="invalid_api_key", headers=challenge, do=do)

    def _sender(self, send: Send, origin: str | None) -> Send:
        """Adds what browsers want of an answer for another origin."""
        if origin is None or not self.access.allows(origin):
            return send
        more = {
            "access-control-allow-origin": origin,
            "vary": "Origin",
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": "authorization, content-type, x-api-key",
            "access-control-max-age": "600",
        }
        pairs = [(k.encode(), v.encode("latin-1", "replace")) for k, v in more.items()]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *pairs]
            await send(message)

        return sending

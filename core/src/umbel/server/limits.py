"""What a request may ask for, and how long things may take."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Limits:
    """Sizes are counts or bytes, times are seconds."""

    body: int = 8 << 20
    max_tokens: int | None = None  # None: until the context is full
    n: int = 16  # answers to one request
    stops: int = 16
    stop_length: int = 256  # characters
    schema: int = 64 << 10  # characters of a schema or grammar
    inputs: int = 2048  # texts of one request for embeddings
    queue: int = 64  # requests that wait for a place
    streams: int = 512  # connections
    header_seconds: float = 20.0  # from a connection, or an answer, to a whole request's head
    body_seconds: float = 60.0
    write_seconds: float = 60.0  # that a client takes to read what was sent
    keep_alive_seconds: float = 30.0
    drain_seconds: float = 30.0  # for answers under way when the server is to stop
    ping_seconds: float = 15.0  # between signs of life on a stream that waits

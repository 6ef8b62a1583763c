"""How long pieces of prompts may be, so that those who decode do not wait for long."""

import contextlib
import time
from collections.abc import Iterator

import attrs

STEPS = 4  # of decoding, which one piece may take the time of
LEAST = 32  # tokens: shorter pieces cost more than they give
SHARE = 0.3  # of what was measured before that a new figure replaces


@attrs.define
class Pace:
    """What was measured of late: seconds of a token of "prefill", and of a step of "decode"."""

    seconds: dict[str, float] = attrs.field(factory=dict)

    @property
    def piece(self) -> int:
        """Tokens of a piece: a power of two, so that few plans serve all."""
        fits = int(STEPS * self.seconds.get("decode", 0) / self.seconds.get("prefill", 1))
        return max(LEAST, 1 << fits.bit_length() - 1 if fits else 0)

    @contextlib.contextmanager
    def timed(self, what: str, n: int = 1) -> Iterator[None]:
        began = time.perf_counter()
        yield
        each = (time.perf_counter() - began) / n
        before = self.seconds.get(what, each)
        self.seconds[what] = before + SHARE * (each - before)

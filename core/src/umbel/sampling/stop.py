"""Stop strings in text that arrives in pieces.

What may be the beginning of a stop string is held back until it is known not to be. What comes
out depends on the text alone, not on how it was cut into pieces.
"""

import re
from collections.abc import Sequence

from umbel.errors import SamplingError


class StopStrings:
    """Lets text through up to the first stop string.

    The match that begins first wins, even if another one ends before it: "abcd" wins over "c".
    Of two that begin at one place the shorter wins: the text is the same, and generation ends
    sooner.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        # A bare string is a sequence too, of its letters: hardly what was meant.
        good = isinstance(stops, list | tuple)
        if not good or not all(isinstance(stop, str) and stop for stop in stops):
            msg, expected = "the stop strings cannot be used", "a list of strings, none empty"
            raise SamplingError(msg, where="stop", expected=expected, got=f"{stops!r:.80}")
        self._stops = sorted(stops, key=len)
        self._pattern = re.compile("|".join(map(re.escape, self._stops)) or "(?!)")
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, last: bool = False) -> str:
        """Take a piece of text; return what is safe to show now, nothing after a stop.

        After the `last` piece, which may be empty, nothing is held back.
        """
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        self._held += text
        match = self._pattern.search(self._held)
        end = match.start() if match else len(self._held)
        # Where before that a stop string may have begun that is not whole yet.
        begun = (at for at in range(end) if not last and self._may_begin(self._held[at:]))
        safe = next(begun, end)
        if match and safe == end:
            self.found = match.group()
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown

    def _may_begin(self, rest: str) -> bool:
        return any(stop.startswith(rest) for stop in self._stops)

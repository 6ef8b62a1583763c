"""Stop strings in text that arrives in pieces.

What may be the beginning of a stop string is held back until it is known not to be. What comes
out depends on the text alone, not on how it was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

from umbel.errors import SamplingError
from umbel.sampling.settings import show


class StopStrings:
    """Lets text through up to the first stop string.

    The match that begins first wins, even if another one ends before it: "abcd" wins over "c".
    Of two that begin at one place the shorter wins: the text is the same, and generation ends
    sooner.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        # A bare string is a sequence too, of its letters: hardly what was meant.
        if not isinstance(stops, list | tuple) or not all(
            isinstance(stop, str) and stop for stop in stops
        ):
            msg = "the stop strings cannot be used"
            expected = "a list of strings that are not empty"
            raise SamplingError(msg, where="stop", expected=expected, got=show(stops))
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Take a piece of text; return what is safe to show now, nothing after a stop."""
        if self.found is not None:
            return ""
        self._held += text
        match, stop = self._first_match()
        safe = self._safe_until(match)
        if safe == match:
            self.found = stop
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown

    def flush(self) -> str:
        """What was held back, when generation ends; a whole stop string in it still counts."""
        if self.found is not None:
            return ""
        match, self.found = self._first_match()
        shown, self._held = self._held[:match], ""
        return shown

    def _first_match(self) -> tuple[int, str | None]:
        """Where the first whole stop string begins, and which it is; or the text's end."""
        matches = [(self._held.find(stop), len(stop), stop) for stop in self._stops]
        whole = [match for match in matches if match[0] >= 0]
        if not whole:
            return len(self._held), None
        at, _, stop = min(whole)
        return at, stop

    def _safe_until(self, match: int) -> int:
        """Where before `match` a stop string may have begun that is not whole yet; or there."""
        longest = max(map(len, self._stops), default=0)
        for at in range(max(len(self._held) - longest + 1, 0), match):
            rest = self._held[at:]
            if any(stop.startswith(rest) for stop in self._stops):
                return at
        return match

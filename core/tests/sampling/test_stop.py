"""Stop strings: the same text for any cutting into pieces, and nothing of a stop shown."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from umbel.errors import SamplingError
from umbel.sampling import StopStrings


def streamed(pieces, stops):
    """What each piece lets out, what is left at the end, and the stop found."""
    stop = StopStrings(stops)
    shown = [stop.push(piece) for piece in pieces]
    return shown, stop.push("", last=True), stop.found


def whole(text, stops):
    """The text up to the first stop string, and that stop, by the definition."""
    found = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    at, _, stop = min(found)
    return text[:at], stop


def test_stop_over_two_pieces():
    """A stop that spans pieces is found, and none of it was shown."""
    shown, rest, found = streamed(["br", "own", " fox", " end"], ["own fox"])
    assert (shown, rest, found) == (["br", "", "", ""], "", "own fox")


def test_found_at_once():
    """The piece that completes a stop tells so, without waiting for more."""
    stop = StopStrings(["\nUser:"])
    for piece in ("hi", "\n", "User"):
        stop.push(piece)
        assert stop.found is None
    assert stop.push(": and") == ""
    assert stop.found == "\nUser:"


def test_false_beginning_is_given_back():
    """What only looked like a stop comes out as soon as it cannot be one."""
    shown, rest, found = streamed(["a\nUs", "ual", "\n"], ["\nUser:"])
    assert (shown, rest, found) == (["a", "\nUsual", ""], "\n", None)


def test_nothing_held_without_reason():
    """Text that begins no stop string is shown at once."""
    assert streamed(["one ", "two"], ["xyz", "END"]) == (["one ", "two"], "", None)
    assert streamed(["one ", "two"], []) == (["one ", "two"], "", None)


@pytest.mark.parametrize("stops", [["END", "ENDING"], ["ENDING", "END"]])
def test_prefix_of_another(stops):
    """Of two stops that begin at one place the shorter ends the text."""
    assert streamed(["aEN", "D", "ING"], stops) == (["a", "", ""], "", "END")


def test_earlier_beginning_wins():
    """A stop that began first wins over one that is whole already, if it gets whole."""
    assert streamed(["ab", "c", "d"], ["c", "abcd"]) == (["", "", ""], "", "abcd")
    assert streamed(["ab", "c", "x"], ["c", "abcd"]) == (["", "", "ab"], "", "c")
    assert streamed(["ab", "c"], ["c", "abcd"]) == (["", ""], "ab", "c")


@settings(deadline=None)
@given(
    text=st.text("ab\n", max_size=30),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=12),
)
@example(text="abab", stops=["bab", "a"], cuts=[1, 2, 3])
@example(text="aabc", stops=["abc"], cuts=[1, 2])
def test_stream_is_the_whole(text, stops, cuts):
    """Any cutting gives the text and the stop that the whole text gives."""
    edges = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    shown, rest, found = streamed(pieces, stops)
    assert whole(text, stops) == ("".join(shown) + rest, found)


@settings(deadline=None)
@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_held_back_is_a_beginning(text, stops):
    """While no stop is found, all is shown but the beginning of a stop."""
    stop = StopStrings(stops)
    shown = ""
    for n, char in enumerate(text, 1):
        shown += stop.push(char)
        if stop.found is not None:
            break
        held = text[len(shown) : n]
        assert any(s.startswith(held) or held.startswith(s) for s in stops) or held == ""
        assert len(held) < max(map(len, stops))


@pytest.mark.parametrize(
    "stops",
    [
        "",
        "abc",
        [""],
        ["a", ""],
        [None],
        [5],
        None,
        5,
        {"a": 1},
        [b"a"],
    ],
)
def test_refused(stops):
    """An empty stop, a bare string and what is no string are refused by name."""
    with pytest.raises(SamplingError, match="stop strings") as caught:
        StopStrings(stops)
    assert caught.value.where == "stop"

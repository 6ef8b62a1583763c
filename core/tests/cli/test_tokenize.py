"""`umbel tokenize`: ids and pieces."""

from __future__ import annotations


def test_pieces(umbel, story):
    """One token a line; a part of a character is shown as bytes."""
    done = umbel("tokenize", story, "hé 世")

    assert (done.code, done.err) == (0, "")
    rows = [line.split(maxsplit=1) for line in done.out.splitlines()]
    assert rows[0] == ["1", "'<s>'"]
    assert [row[1] for row in rows[-3:]] == ["b'\\xe4'", "b'\\xb8'", "b'\\x96'"]


def test_ids(umbel, story):
    """--ids writes one list; stdin is another way in."""
    done = umbel("tokenize", story, "--ids", "Once")

    assert done == umbel("tokenize", story, "-", "--ids", stdin="Once\n")
    assert done.out == "[1, 403]\n"


def test_special(umbel, story):
    """The text of a control token is that token only with --special."""
    plain, special = (
        umbel("tokenize", story, "</s>", "--ids", *flag).out for flag in ((), ("--special",))
    )

    assert special == "[1, 2]\n"
    assert plain != special

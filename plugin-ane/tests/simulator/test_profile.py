"""Profiles: what files may say, and what the named ones do say."""

from __future__ import annotations

import pytest
from umbel.errors import OptionError
from umbel_ane import profile

D = 'description = "d"\n'


def test_names() -> None:
    named = {"orion-m4-macos15", "m1", "m4-macos27", "permissive", "maderix"}
    assert set(profile.names()) == named
    assert profile.load().name == "orion-m4-macos15"
    assert all(profile.load(n).name == n for n in named)


def test_what_profiles_differ_in() -> None:
    strict, m1, new = (profile.load(n) for n in ("orion-m4-macos15", "m1", "m4-macos27"))
    assert strict.refused >= {"concat", "gelu"} <= m1.refused
    assert "concat" not in new.refused
    assert (strict.one_file, m1.one_file) == (True, False)
    assert (strict.fp32_io, m1.fp32_io) == (True, False)
    assert (strict.blob_error, new.blob_error) == ("garbage", "error")
    assert profile.load("maderix").max_inputs == 1
    assert profile.load("permissive").reload == "reread"
    assert all(
        2.9 < p.costs.conv_tflops / p.costs.matmul_tflops < 3.1
        for p in map(profile.load, profile.names())
    )  # constraint 17


def test_like_and_more() -> None:
    texts = {
        "a": D + 'refused = ["x"]\nmax_inputs = 2\n[costs]\ndispatch_ms = 1\nload_ms = 2',
        "b": 'like = "a"\nmore_refused = ["y"]\nmax_inputs = 3\n[costs]\nload_ms = 5',
        "c": 'like = "b"\nrefused = ["z"]',
    }
    b, c = profile.read("b", texts), profile.read("c", texts)
    assert (b.refused, b.max_inputs) == ({"x", "y"}, 3)
    assert (b.costs.dispatch_ms, b.costs.load_ms) == (1.0, 5.0)
    assert (c.refused, c.max_inputs, c.name) == ({"z"}, 3, "c")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"a": 'like = "b"', "b": 'like = "a"'}, "a -> b -> a"),
        ({"a": 'like = "zz"', "b": D}, "one of a, b"),
        ({"a": D + "wrong = 1"}, "got: wrong"),
        ({"a": D + "[costs]\nwrong = 1"}, r"\[costs\]"),
        ({"a": D + 'binding = "x"'}, "sorted or declared"),
        ({"a": D + "max_inputs = true"}, "max_inputs"),
        ({"a": D + "max_inputs = 1.5"}, "max_inputs"),
        ({"a": D + "refused = [1]"}, "refused"),
        ({"a": ""}, "description"),
        ({"a": "="}, "not TOML"),
    ],
)
def test_refused_files(texts: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        profile.read("a", texts)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(OptionError, match=r"m1, m4-macos27, maderix, orion-m4-macos15"):
        profile.load("m9")

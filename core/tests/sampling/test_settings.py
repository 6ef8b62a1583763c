"""Settings: the defaults, and every value that has to be refused by the name of its field."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from umbel.errors import SamplingError
from umbel.sampling import Settings

INTEGERS = ["top_k", "dry_allowed_length", "dry_last_n", "penalty_last_n", "mirostat", "seed"]
NUMBERS = [
    "temperature",
    "top_p",
    "min_p",
    "typical",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "mirostat_tau",
    "mirostat_eta",
]
NEVER_A_NUMBER = [
    float("nan"),
    float("inf"),
    -float("inf"),
    True,
    False,
    "5",
    b"5",
    [1],
    {},
    1j,
]
HUGE = [10**400, -(10**400), 1e308, -1e308]


def refused(**setting: object) -> SamplingError:
    """The error that a setting raises; it must name the field and show what is expected."""
    (field,) = setting
    with pytest.raises(SamplingError) as caught:
        Settings(**setting)
    assert str(caught.value.where) == field
    assert field in caught.value.what
    assert caught.value.expected
    assert len(str(caught.value.got)) <= 80
    return caught.value


def test_defaults():
    """A setting that is left out is what llama.cpp makes it."""
    expected = {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical": 1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_last_n": -1,
        "dry_breakers": ("\n", ":", '"', "*"),
        "repeat_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "penalty_last_n": 64,
        "logit_bias": {},
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "seed": None,
        "samplers": (
            "penalties",
            "dry",
            "top_k",
            "typ_p",
            "top_p",
            "min_p",
            "xtc",
            "temperature",
        ),
        "json_schema": None,
        "regex": None,
        "grammar": None,
    }
    assert expected == attrs.asdict(Settings())


@pytest.mark.parametrize("value", [1, True, b"a", ["a"], {}])
@pytest.mark.parametrize("field", ["regex", "grammar"])
def test_constraint_refused(field, value):
    """What is no text is no regex and no grammar."""
    refused(**{field: value})


@pytest.mark.parametrize("value", [False, 1, [], "[]", "3", "null", "false"])
def test_schema_refused(value):
    """A JSON schema is an object."""
    refused(json_schema=value)


LOOP: dict[str, object] = {}
LOOP["loop"] = LOOP


@pytest.mark.parametrize("value", ["", "{", "{'a': 1}", "\ufeff{}", object(), {"a": {1}}, LOOP])
def test_schema_that_is_no_json(value):
    """It says where the text is broken."""
    with pytest.raises(SamplingError, match="no JSON") as caught:
        Settings(json_schema=value)
    assert caught.value.where == "json_schema"


def test_schema_is_kept_as_text():
    """In every form; what happens to the dict later does not matter, and it can be evolved."""
    schema = {"type": "object"}
    kept = Settings(json_schema=schema)
    schema["type"] = "array"
    forms = [kept, attrs.evolve(kept, seed=None), Settings(json_schema=True)]
    forms += [Settings(json_schema=text) for text in ('{"type": "object"}', " true\n")]
    assert {'{"type": "object"}'} == {s.json_schema for s in forms}


def test_one_constraint_only():
    """A second one is refused by its name."""
    with pytest.raises(SamplingError, match="one constraint only") as caught:
        Settings(json_schema=True, grammar="start: 'a'")
    assert ("grammar", "json_schema and grammar") == (caught.value.where, caught.value.got)


@pytest.mark.parametrize("value", [*NEVER_A_NUMBER, *HUGE, 1.0, 0.5, -(2**31), 2**63])
@pytest.mark.parametrize("field", INTEGERS)
def test_integer_refused(field, value):
    """What is not an integer of the range never gets into an integer setting."""
    refused(**{field: value})


@pytest.mark.parametrize("value", [*NEVER_A_NUMBER, *HUGE, None])
@pytest.mark.parametrize("field", NUMBERS)
def test_number_refused(field, value):
    """What is not a finite number of a sane size never gets into a number setting."""
    refused(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", -1e-9),
        ("top_k", -2),
        ("top_k", None),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", 1.0001),
        ("typical", 2),
        ("xtc_probability", 1.01),
        ("xtc_threshold", -0.01),
        ("dry_multiplier", -0.5),
        ("dry_base", 0.99),
        ("dry_allowed_length", -1),
        ("dry_last_n", -2),
        ("repeat_penalty", 0),
        ("repeat_penalty", -1.1),
        ("penalty_last_n", -2),
        ("mirostat", 1),
        ("mirostat", 3),
        ("mirostat", np.bool_(True)),
        ("mirostat_tau", -1),
        ("mirostat_eta", 2),
        ("seed", -1),
    ],
)
def test_out_of_range_refused(field, value):
    """A value just outside of its range is refused."""
    refused(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", np.float32(0.5)),
        ("top_k", -1),
        ("top_k", 0),
        ("top_k", 10**9),
        ("top_k", np.int32(7)),
        ("top_p", 0),
        ("top_p", 1),
        ("min_p", 1),
        ("typical", 0),
        ("dry_base", 1),
        ("penalty_last_n", 0),
        ("frequency_penalty", -2),
        ("mirostat", 2),
        ("seed", 0),
        ("seed", 2**63 - 1),
    ],
)
def test_edge_accepted(field, value):
    """The ends of the ranges, integers for numbers and NumPy's numbers are accepted."""
    assert value == getattr(Settings(**{field: value}), field)


@pytest.mark.parametrize(
    "bias",
    [
        {"5": 1.0},
        {True: 1.0},
        {1.0: 1.0},
        {5: float("nan")},
        {5: float("inf")},
        {5: 10**400},
        {5: -1e10},
        {5: True},
        {5: "1"},
        {5: None},
        [(5, 1.0)],
        None,
        "5",
    ],
)
def test_logit_bias_refused(bias):
    """A bias needs an integer for a key, and is a number of a sane size or -inf."""
    refused(logit_bias=bias)


def test_logit_bias_copied():
    """What the caller does to the mapping later does not get into the settings."""
    bias = {5: -1.0, 6: -float("inf")}
    settings = Settings(logit_bias=bias)
    bias[7] = float("nan")
    assert {5: -1.0, 6: -float("inf")} == settings.logit_bias


@pytest.mark.parametrize(
    "samplers",
    [
        ("top_k", "top_n_sigma"),
        ("top_k", "top_k"),
        "top_k;temperature",
        ("top-k",),
        ("typical",),
        (1,),
        ([],),
        None,
        5,
        {"top_k": 1},
    ],
)
def test_samplers_refused(samplers):
    """Unknown and repeated names are refused."""
    refused(samplers=samplers)


def test_samplers_unknown_lists_names():
    """The error for an unknown name says which there are."""
    assert "typ_p, top_p, min_p, xtc" in refused(samplers=["nucleus"]).expected


@pytest.mark.parametrize("breakers", [("",), ["a", 5], "ab", None, 5, {"a": 1}])
def test_breakers_refused(breakers):
    """Breakers are strings that are not empty."""
    refused(dry_breakers=breakers)


def test_sequences_become_tuples():
    """Lists, as they come from JSON, become tuples."""
    settings = Settings(samplers=["top_k", "temperature"], dry_breakers=["ab"])
    assert settings.samplers == ("top_k", "temperature")
    assert settings.dry_breakers == ("ab",)


def test_value():
    """Settings are values: keyword only, unchangeable, comparable, hashable."""
    assert Settings(seed=1, logit_bias={1: 2.0}) == Settings(seed=1, logit_bias={1: 2.0})
    assert hash(Settings(seed=1, logit_bias={1: 2.0})) == hash(
        Settings(seed=1, logit_bias={1: 2.0})
    )
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Settings().top_k = 5
    with pytest.raises(TypeError):
        Settings(0.5)


@pytest.mark.parametrize(
    ("temperature", "greedy"), [(0, True), (1e-10, True), (1e-5, False), (0.8, False)]
)
def test_greedy(temperature, greedy):
    """Greedy is a temperature at which nothing but the best token could come out."""
    assert greedy is Settings(temperature=temperature).greedy

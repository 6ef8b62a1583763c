"""Options of backends: parsed, checked, handed to `open`."""

from __future__ import annotations

import numpy as np
import pytest
from umbel.errors import OptionError
from umbel.hookspecs import Option
from umbel.plugins import parse_options

TRUTH = {"true": True, "false": False}
OPTIONS = [
    Option("threads", "how many", default=4, parse=int),
    Option("mode", "where weights live", default="local", choices=("local", "mirror")),
    Option("verify", "check results", default=False, parse=TRUTH.__getitem__),
    Option("bound", "a share", parse=float),
]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"threads": "8"}, {"threads": 8}),
        ({"threads": 8}, {"threads": 8}),
        ({"threads": np.int64(8)}, {"threads": 8}),
        ({"mode": "mirror", "bound": 1}, {"mode": "mirror", "bound": 1.0}),
        ({"verify": True}, {"verify": True}),
        ({"verify": "true"}, {"verify": True}),
    ],
)
def test_open_gets_every_option_parsed_or_by_default(plugins, make, given, expected):
    """Values from Python are parsed as those of the command line are."""
    plugins.add("one", make("one", options=lambda: OPTIONS))
    opened = plugins.open(plugins.find("one"), {"one": given})
    defaults = {"threads": 4, "mode": "local", "verify": False, "bound": None}
    assert defaults | expected == opened.info.details["options"]


@pytest.mark.parametrize(
    ("options", "message", "expected"),
    [
        (
            {"one": {"speed": "1"}},
            "'one' has no option 'speed'",
            "threads, mode, verify, bound",
        ),
        ({"host": {"speed": "1"}}, "'host' has no option 'speed'", None),
        (
            {"one": {"threads": "many"}},
            "one.threads cannot be 'many'\n.*\n.*got: many$",
            "how many",
        ),
        ({"one": {"mode": "x"}}, "one.mode cannot be 'x'", "local, mirror"),
        ({"one": {"mode": ""}}, "one.mode cannot be ''", "local, mirror"),
        ({"one": {"verify": "perhaps"}}, "one.verify cannot be 'perhaps'", "check results"),
        ({"two": {"mode": "x"}}, "there is no backend 'two'", "host, one"),
    ],
)
def test_bad_options_are_refused_before_the_device_is_opened(
    plugins, make, options, message, expected
):
    """Unknown backend, unknown option, bad value, none of the choices."""
    opens = []
    plugins.load()
    plugins.add(
        "one", make("one", options=lambda: OPTIONS, open=lambda device: opens.append(1))
    )
    with pytest.raises(OptionError, match=message) as caught:
        plugins.open(plugins.find("one"), options)
    assert expected in (None, caught.value.expected)
    assert opens == []


def test_options_for_a_backend_without_any(plugins, make):
    """The message does not show an empty list."""
    plugins.add("one", make("one"))
    with pytest.raises(OptionError, match="expected: no option at all"):
        plugins.open(plugins.find("one"), {"one": {"mode": "x"}})


def test_other_options_for_an_open_device_are_refused(plugins, make):
    """Options that were not given agree with anything; others would silently not count."""
    plugins.add("one", make("one", options=lambda: OPTIONS))
    device = plugins.find("one")
    opened = plugins.open(device, {"one": {"mode": "mirror"}})
    assert opened is plugins.open(device)
    assert opened is plugins.open(device, {"one": {"mode": "mirror"}, "host": {}})
    with pytest.raises(
        OptionError, match=r"one:0 is already open with another one\.mode"
    ) as caught:
        plugins.open(device, {"one": {"mode": "local"}})
    assert "umbel.plugins.get().close()" in caught.value.do
    plugins.close()
    again = plugins.open(device, {"one": {"mode": "local"}})
    assert "local" == again.info.details["options"]["mode"]


def test_parse_options_gives_a_dict_for_each_backend():
    """A value may be empty, and may contain what separates the others."""
    texts = ["numa.mode=mirror", "numa.nodes=0,1", "host.x=a=b.c", "cann.env="]
    assert parse_options(texts) == {
        "numa": {"mode": "mirror", "nodes": "0,1"},
        "host": {"x": "a=b.c"},
        "cann": {"env": ""},
    }


@pytest.mark.parametrize(
    "text",
    ["", "mode", "mode=x", "numa.mode", ".mode=x", "numa.=x", "numa:0.mode=x", "a.b.c=x"],
)
def test_parse_options_refuses_other_forms(text):
    """The form is shown."""
    with pytest.raises(OptionError, match=r"expected: backend\.name=value"):
        parse_options([text])


def test_parse_options_takes_the_last_of_two_values():
    """As everywhere on a command line."""
    assert parse_options(["numa.mode=a", "numa.mode=b"]) == {"numa": {"mode": "b"}}

"""Devices: asked with a time limit, sorted, found by name."""

from __future__ import annotations

import re
import sys
import time

import pytest
from umbel.errors import DeviceError, PluginError
from umbel.hookspecs import Device


def raising(error):
    def hook(device=None):
        raise error

    return hook


def test_devices_are_sorted_by_priority_then_name(plugins, make):
    """Neither the order of loading nor that of the hook's answer counts."""
    plugins.add("b", make("b", priority=5))
    plugins.add("low", make("low", priority=-1))
    plugins.add("a", make("a", priority=5, indexes=(10, 2, 0)))
    assert [d.name for d in plugins.devices()] == [
        "a:0",
        "a:2",
        "a:10",
        "b:0",
        "host:0",
        "low:0",
    ]


def listed(*devices):
    return lambda: list(devices)


SIMULATED = Device("sim:0", "a model of hardware", 1000, simulated=True)


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (raising(RuntimeError("no libascendcl.so")), "RuntimeError: no libascendcl.so"),
        (raising(SystemExit(1)), "SystemExit: 1"),
        (lambda: None, r"it returned None, expected Sequence\[Device\]"),
        (lambda: "bad:0", r"it returned 'bad:0', expected Sequence\[Device\]"),
        (lambda: [Device("bad:0", "", 1), "bad:1"], r"expected Sequence\[Device\]"),
        (lambda: time.sleep(60), "no answer within 0.25 s"),
        (listed(Device("host:1", "", 1)), "unique names 'bad:N'.*'host:1'"),
        (listed(Device("bad", "", 1)), "unique names 'bad:N'.*'bad'"),
        (listed(Device("bad:00", "", 1)), "unique names 'bad:N'.*'bad:00'"),
        (listed(Device("bad:-1", "", 1)), "unique names 'bad:N'.*'bad:-1'"),
        (
            listed(Device("bad:0", "", 1), Device("bad:0", "", 2)),
            "unique names.*'bad:0'.*'bad:0'",
        ),
        (listed(Device("bad:0", "", None)), "whole priorities: .*priority=None"),
    ],
)
def test_a_plugin_whose_devices_fail_hides_no_others(plugins, row, make, devices, reason):
    """Each is asked by itself, for a limited time; naming it raises its reason."""
    plugins.add("bad", make("bad", devices=devices))
    plugins.add("good", make("good", priority=7))
    start = time.monotonic()
    assert [d.name for d in plugins.devices()] == ["good:0", "host:0"]
    assert time.monotonic() - start < 5
    assert plugins.find("auto").name == "good:0"
    assert re.match(rf"devices\(\): .*{reason}", row("bad").reason)
    with pytest.raises(PluginError, match=rf"'bad' cannot be used: devices\(\): .*{reason}"):
        plugins.find("bad")


def test_what_devices_prints_does_not_reach_stdout(plugins, make, capsys):
    """The output of the command line may be piped into a program."""

    def devices():
        print("probing the bus")
        return []

    plugins.add("loud", make("loud", devices=devices))
    plugins.devices()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "probing the bus\n")


def test_devices_are_asked_once(plugins, make):
    """A slow probe is paid for once."""
    calls = []
    plugins.add("one", make("one", devices=lambda: calls.append(1) or []))
    plugins.devices()
    plugins.devices()
    assert calls == [1]


def test_auto_takes_the_best_real_device(plugins, make):
    """A simulated device is never taken, unless it is named."""
    plugins.add("sim", make("sim", devices=listed(SIMULATED)))
    plugins.add("npu", make("npu", priority=200))
    assert plugins.find("auto").name == "npu:0"
    assert plugins.find("sim").name == "sim:0"


@pytest.mark.parametrize("name", ["npu:2", "npu:x", "npu:", "npu:00", "npu:-1", "npu:0:0"])
def test_an_index_out_of_range_lists_the_devices_that_are_there(plugins, make, name):
    """Indexes are logical; the error shows which there are."""
    plugins.add("npu", make("npu", indexes=(0, 1)))
    assert plugins.find("npu:1").name == "npu:1"
    with pytest.raises(DeviceError, match=f"there is no device '{name}'") as caught:
        plugins.find(name)
    assert caught.value.expected == "npu:0, npu:1, host:0"


@pytest.mark.parametrize("name", ["gpu", "gpu:0", "", ":0", "HOST", "auto:0"])
def test_an_unknown_device_lists_what_is_there(plugins, make, name):
    """A named device that is missing is an error, never the host."""
    plugins.add("npu", make("npu"))
    with pytest.raises(DeviceError, match=f"there is no device '{name}'") as caught:
        plugins.find(name)
    assert caught.value.expected == "npu:0, host:0"


def test_auto_without_any_real_device_is_an_error(plugins, make, monkeypatch):
    """Should even the host be broken, the message says so."""
    monkeypatch.setitem(sys.modules, "umbel.host", None)
    plugins.add("sim", make("sim", devices=listed(SIMULATED)))
    with pytest.raises(DeviceError, match="there is no real device"):
        plugins.find()
    with pytest.raises(
        PluginError, match=r"'host' cannot be used: host = umbel\.host: ModuleNotFoundError"
    ):
        plugins.find("host")

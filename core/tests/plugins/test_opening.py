"""Opening and closing devices."""

from __future__ import annotations

import threading
import time

import pytest
from umbel.errors import DeviceError
from umbel.hookspecs import DeviceInfo, Kernel

HOOKS = ("devices", "open", "buffer_type", "op_supported", "graph_compute")


def raising(error):
    def hook(device=None):
        raise error

    return hook


def test_a_device_is_opened_once(plugins, make):
    """Models share the open device and its lock."""
    plugins.add("one", make("one"))
    device = plugins.find("one")
    opened = plugins.open(device)
    assert opened is plugins.open(device)
    assert device is opened.device
    assert plugins.backends["one"] is opened.hooks
    assert (64, device) == (opened.buffer_type.alignment, opened.buffer_type.device)
    assert opened.lock.acquire(blocking=False)
    opened.lock.release()


def test_two_threads_open_a_device_once(plugins, make):
    """Opening may take long; the second caller waits for the first."""
    opens = []

    def slow(device):
        opens.append(device.name)
        time.sleep(0.05)
        return DeviceInfo()

    plugins.add("one", make("one", open=slow))
    device = plugins.find("one")
    threads = [threading.Thread(target=plugins.open, args=(device,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opens == ["one:0"]


def test_open_hands_over_the_kernels_of_the_other_plugins(plugins, make):
    """The owner gets them all, but not its own back."""
    kernel = Kernel("rms_norm", lambda node: None, "code")
    own = Kernel("add", lambda node: None, "own code")
    plugins.add("one", make("one", kernels=lambda device: [own]))
    plugins.add(
        "extras",
        make(
            "extras", without=HOOKS, kernels=lambda device: [kernel] * (device.name == "one:0")
        ),
    )
    assert [kernel] == plugins.open(plugins.find("one")).info.details["kernels"]
    assert [own] == plugins.open(plugins.find("host")).info.details.get("kernels", [own])


def test_kernels_that_fail_do_not_keep_a_device_closed(plugins, row, make):
    """The fault is the other plugin's."""
    plugins.add("one", make("one"))
    plugins.add("bad", make("bad", kernels=raising(RuntimeError("no compiler"))))
    assert plugins.open(plugins.find("one")).info.details["kernels"] == []
    assert row("bad").reason == "kernels(one:0): RuntimeError: no compiler"
    assert row("one").reason == ""


def test_a_device_that_fails_to_open_can_be_opened_later(plugins, make):
    """A failure is not kept: the board may have been plugged in."""
    answers = [RuntimeError("unplugged"), DeviceInfo()]

    def open(device):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    plugins.add("one", make("one", open=open))
    with pytest.raises(DeviceError, match=r"'one' failed in open\(one:0\): RuntimeError: unpl"):
        plugins.open(plugins.find("one"))
    assert DeviceInfo() == plugins.open(plugins.find("one")).info


def test_what_open_prints_does_not_reach_stdout(plugins, make, capsys):
    """Vendor libraries greet the user."""
    plugins.add("loud", make("loud", open=lambda device: print("hello") or DeviceInfo()))
    plugins.open(plugins.find("loud"))
    assert capsys.readouterr().out == ""


def test_close_closes_all_despite_failures(plugins, row, make):
    """One that fails gets a fault; afterwards a device can be opened anew."""
    closed = []
    plugins.add("a", make("a", close=lambda device: closed.append(device.name)))
    plugins.add("bad", make("bad", close=raising(RuntimeError("stuck"))))
    plugins.add("c", make("c", close=lambda device: closed.append(device.name)))
    before = [plugins.open(plugins.find(name)) for name in ("a", "bad", "c")]
    plugins.close()
    plugins.close()
    assert sorted(closed) == ["a:0", "c:0"]
    assert row("bad").reason == "close(bad:0): RuntimeError: stuck"
    assert before[0] is not plugins.open(plugins.find("a"))


def test_close_waits_for_the_computation(plugins, make):
    """Memory is not taken from under a running kernel."""
    order = []
    plugins.add("one", make("one", close=lambda device: order.append("closed")))
    opened = plugins.open(plugins.find("one"))
    with opened.lock:
        thread = threading.Thread(target=plugins.close)
        thread.start()
        time.sleep(0.05)
        order.append("computed")
    thread.join()
    assert order == ["computed", "closed"]

"""Times per operation: only when asked for, and what they say."""

import re
from types import SimpleNamespace

import attrs
import pytest
from umbel.errors import DeviceError
from umbel.ops import OPS
from umbel_kit.cases import Arg, Case
from umbel_kit.conformance import perf
from umbel_kit.conformance.perf import Timed, seconds
from umbel_kit.device import prepare

ADD = Case("add", (Arg((1000,)), Arg((1000,))))
# the host under another name
PLUGIN = """
from umbel import host
from umbel.hookspecs import Device, hookimpl

UMBEL_API = 1


@hookimpl
def devices():
    return [Device("odd:0", "the host in disguise", priority=1, simulated=True)]


@hookimpl
def op_supported(device, node):
    return "it was never taught to turn" if node.op.name == "rope" else None


open, close, buffer_type = host.open, host.close, host.buffer_type
graph_compute, forget = host.graph_compute, host.forget
"""


def test_only_when_asked(suite):
    """Without the option no such test is there."""
    ran = suite("-k", "test_time")
    assert ran.returncode == 5
    assert "time per operation" not in ran.stdout


def test_summary(suite, install):
    """A line for each, in order, under the device's name; what is refused with its reason."""
    folder = install("odd", PLUGIN)
    chosen = "test_time and decode and (norm or rope or swiglu or scan)"
    ran = suite("--umbel-perf", "--umbel-device", "odd", "-k", chosen, path=folder)
    assert ran.returncode == 0, ran.stdout
    _, _, told = ran.stdout.partition("time per operation on odd:0 (simulated)")
    lines = [line for line in told.splitlines() if " us" in line]
    assert [line.split()[0] for line in lines] == ["norm", "rms_norm", "ssm_scan", "swiglu"]
    for line in lines:
        rate = "" if line.startswith("ssm_scan") else r" +[0-9.]+ GB/s"
        assert re.fullmatch(r"\w+ [0-9x]+, decode( of 1)? +[0-9.]+ us" + rate, line), line
    assert re.search(r"^ +1 decomposed: it was never taught to turn$", told, re.MULTILINE)


def test_rates(host):
    """Bytes that are read and written once, or products; or neither."""
    call = prepare(ADD, host, OPS)
    assert Timed("an addition", ADD).row(call, 1e-6).split() == [
        *("an", "addition", "1.0", "us", "12.00", "GB/s")
    ]
    assert Timed("x", ADD, flop=5_000_000).row(call, 1e-3).split()[1:] == [
        *("1000.0", "us", "5.00", "GFLOP/s")
    ]
    assert Timed("x", ADD, bound=False).row(call, 1e-3).split() == ["x", "1000.0", "us"]


def test_stored_bytes(host):
    """A quantised weight counts as it is stored, a cache once."""
    named = {t.title: t for t in perf.timed_cases()}
    timed = named["mul_mat q8_0 4096x2048, decode of 1"]
    row = timed.row(prepare(timed.case, host, OPS), 1.0).split()
    nbytes = 4096 * 2048 * 34 / 32 + 4 * (2048 + 4096)
    assert float(row[-2]) == pytest.approx(nbytes / 1e9, abs=0.006)


class Clock:
    """Time that passes only as the device says: each call takes as long as the next number."""

    def __init__(self, host, took):
        self.now, self.took, self.calls, self.gone = 0.0, iter(took), 0, []
        hooks = SimpleNamespace(
            graph_compute=self.compute,
            sync=self.sync,
            forget=lambda d, uid: self.gone.append(uid),
        )
        self.target = attrs.evolve(host, hooks=hooks)

    def compute(self, device, graph):
        self.calls += 1

    def sync(self, device):
        self.now += next(self.took)

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize(
    ("took", "calls", "median"),
    [
        ([9.0, 9.0, 0.3, 0.1, 0.5, 0.2, 0.4], 7, 0.3),  # warm-up, then no fewer than five
        ([1.0] * 2 + [0.01] * 30, 2 + 20, 0.01),  # as many as fill the time
        ([0.0] * 999, 2 + 200, 0.0),  # and never more than that
    ],
)
def test_median(host, monkeypatch, took, calls, median):
    """Of the calls after the warm-up, waiting included."""
    clock = Clock(host, took)
    monkeypatch.setattr(perf, "time", clock)
    monkeypatch.setattr(perf, "ENOUGH", 0.195)
    assert seconds(prepare(ADD, host, OPS), clock.target) == pytest.approx(median)
    assert clock.calls == calls
    assert len(clock.gone) == 1


def test_failing(host):
    """A device that fails is not timed, and forgets all the same."""
    clock = Clock(host, [])

    def sync(device):
        msg = "too hot"
        raise DeviceError(msg)

    clock.target.hooks.sync = sync
    with pytest.raises(DeviceError, match="too hot"):
        seconds(prepare(ADD, host, OPS), clock.target)
    assert len(clock.gone) == 1

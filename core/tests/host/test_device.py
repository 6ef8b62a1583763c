"""The host as a device: its options, threads, errors, and what it tells."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
from umbel import host
from umbel.errors import CancelledError, DeviceError, GraphError, OptionError
from umbel.plugins import Plugins

PLUGINS = Plugins(only="")
PLUGINS.load()


def test_device():
    """It is there, comes last, and reads its own memory."""
    (device,) = host.devices()
    assert (device.name, device.priority, device.simulated) == ("host:0", 0, False)


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ({}, "dequantise", "auto"),
        ({"dequantise": "blocks"}, "dequantise", "blocks"),
        ({"memory": "512"}, "memory", 512),
        ({"memory": "3k"}, "memory", 3 << 10),
        ({"memory": "800M"}, "memory", 800 << 20),
        ({"memory": "2G"}, "memory", 2 << 30),
        ({"threads": 3}, "threads", 3),
        ({"threads": 0}, "threads", 0),
        ({}, "threads", None),
    ],
)
def test_options(given, name, expected):
    """Options as the command line or Python gives them."""
    assert expected == PLUGINS.option_values("host", given)[name]


@pytest.mark.parametrize(
    "given",
    [
        {"dequantise": "twice"},
        {"memory": "-1"},
        {"memory": "half"},
        {"memory": "M"},
        {"memory": "1.5G"},
        {"threads": -1},
        {"threads": "many"},
        {"threads": "1_0"},
        {"threads": ""},
    ],
)
def test_bad_options(given):
    """Bad values are refused by name before anything is opened."""
    with pytest.raises(OptionError, match=next(iter(given))):
        PLUGINS.option_values("host", given)


@pytest.fixture
def blas(monkeypatch):
    """A BLAS with 4 of 6 processors, and the counts it was given."""
    counts = [4]
    monkeypatch.setattr(host, "_blas", lambda: (counts.append, lambda: counts[-1], 4))
    monkeypatch.setattr(host, "cpus", lambda: 6)
    return counts


@pytest.mark.parametrize(
    ("asked", "got"), [(None, 4), (0, 4), (1, 1), (3, 3), (6, 6), (7, 6), (10**6, 6)]
)
def test_threads(blas, caplog, asked, got):
    """None and 0 leave the choice; more than there are processors is capped, with a word."""
    info = host.open(host.DEVICE, {"threads": asked}, [])
    assert got == blas[-1] == info.details["threads"]
    warned = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    if asked and asked > 6:
        assert [f"--threads {asked} is more than the 6 processors: 6 it is"] == warned
    else:
        assert warned == []


def test_threads_are_restored(blas):
    """Opened again without a number, it has as many as at first."""
    host.open(host.DEVICE, {"threads": 2}, [])
    host.open(host.DEVICE, {}, [])
    assert blas[-1] == 4


@pytest.mark.parametrize("asked", [None, 2])
def test_no_control_over_threads(monkeypatch, caplog, asked):
    """A BLAS that cannot be asked is told of, if somebody wanted something of it."""
    monkeypatch.setattr(host, "_blas", lambda: None)
    monkeypatch.setattr(host, "cpus", lambda: 6)
    info = host.open(host.DEVICE, {"threads": asked}, [])
    assert info.details["threads"] == 6
    assert bool(asked) == any("no effect" in r.message for r in caplog.records)


def test_processors(monkeypatch):
    """Only those that this process may use count."""
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {1, 5, 7}, raising=False)
    assert host.cpus() == 3
    monkeypatch.delattr(host.os, "sched_getaffinity")
    monkeypatch.setattr(host.os, "cpu_count", lambda: 12)
    assert host.cpus() == 12
    monkeypatch.setattr(host.os, "cpu_count", lambda: None)
    assert host.cpus() == 1


def test_the_real_blas():
    """The BLAS of this NumPy takes a number, or cannot be asked; 0 gives back what was."""
    before = host.set_threads(0)
    assert host.set_threads(1) == (1 if host._blas() else host.cpus())
    assert host.set_threads(0) == before >= 1


def test_results_do_not_depend_on_threads(run):
    """Sums may have another order, no more."""
    output = run.build.mul_mat(run.weight("q8_0", 64), run.input(9, 256))
    results = []
    for threads in (1, 2):
        run.open(threads=threads)
        results.append(run.compute(output)[0])
    assert np.abs(results[0] - results[1]).max() < 1e-4


@pytest.mark.parametrize(
    ("limit", "stat", "expected"),
    [
        ("max\n", "anon 5\n", None),
        ("9223372036854771712\n", "total_rss 5\n", None),
        ("1000000\n", "file 900000\nanon 400000\nanon_thp 7\n", 600000),
        ("1000000\n", "rss 1\ntotal_rss 300000\n", 700000),
        ("1000000\n", "anon 2000000\n", 0),
        ("nonsense", "", None),
    ],
)
def test_limits_of_a_container(monkeypatch, tmp_path, limit, stat, expected):
    """What a container may use is what there is; its file cache can be given back."""
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.stat").write_text(stat)
    monkeypatch.setattr(host, "_LIMITS", ())
    outside = host.memory()
    assert 0 < outside[1] <= outside[0]
    monkeypatch.setattr(host, "_LIMITS", (tmp_path / "none", tmp_path / "memory.max"))
    total, free = host.memory()
    if expected is None:
        assert outside[0] == total
    else:
        assert (1000000, expected) == (total, free)


def test_a_machine_that_tells_nothing(monkeypatch):
    """Zeros, and then weights are dequantised in blocks."""

    def fails(name):
        raise ValueError(name)

    monkeypatch.setattr(host.os, "sysconf", fails, raising=False)
    assert host.memory() == (0, 0)
    host.open(host.DEVICE, {}, [])
    assert host.buffer_type(host.DEVICE).limit == 0


def test_errors_name_the_node(run):
    """Whatever a reference raises becomes an error of the device."""
    graph = run.graph(run.build.get_rows(run.input(3, 4), run.ids(7), name="lookup"))
    with pytest.raises(DeviceError, match="lookup failed") as caught:
        host.graph_compute(host.DEVICE, graph)
    assert "IndexError" in caught.value.got
    assert caught.value.where == "host:0"


def test_our_own_errors_go_through(run, monkeypatch):
    """A typed error keeps its type."""

    def fails(*arrays, **attributes):
        msg = "typed"
        raise GraphError(msg)

    op = run.build.ops["exp"]
    graph = run.graph(run.build.exp(run.input(2, 2)))
    monkeypatch.setattr(type(op), "__setattr__", object.__setattr__)
    monkeypatch.setattr(op, "reference", fails)
    with pytest.raises(GraphError, match="typed"):
        host.graph_compute(host.DEVICE, graph)


def test_cancel(run, monkeypatch):
    """Another thread stops it between two nodes; the next step runs as ever."""
    b, op, calls = run.build, run.build.ops["exp"], []

    def stops(x):
        calls.append(1)
        thread = threading.Thread(target=host.cancel, args=(host.DEVICE,))
        thread.start()
        thread.join()
        return np.exp(x)

    real = op.reference
    graph = run.graph(b.sqrt(b.exp(run.input(2, 2))))
    monkeypatch.setattr(type(op), "__setattr__", object.__setattr__)
    monkeypatch.setattr(op, "reference", stops)
    with pytest.raises(CancelledError):
        host.graph_compute(host.DEVICE, graph)
    host.forget(host.DEVICE, graph.uid)
    monkeypatch.setattr(op, "reference", real)
    host.sync(host.DEVICE)  # as the core does before others get the device
    host.graph_compute(host.DEVICE, graph)
    assert calls == [1]
    assert np.isfinite(graph.slots[graph.nodes[1]].buffer.read(0, 16).view("<f4")).all()


def test_programs_are_forgotten(run):
    """What was prepared for a split goes with it, also when the device is closed."""
    graph = run.graph(run.build.exp(run.input(2, 2)))
    host.graph_compute(host.DEVICE, graph)
    assert graph.uid in host._open["host:0"].programs
    host.forget(host.DEVICE, graph.uid)
    host.forget(host.DEVICE, graph.uid)
    assert host._open["host:0"].programs == {}
    host.close(host.DEVICE)
    host.forget(host.DEVICE, graph.uid)
    host.cancel(host.DEVICE)
    host.close(host.DEVICE)
    assert host.status(host.DEVICE)["dequantised"] == 0


def test_everything_is_supported(run):
    """The host refuses nothing."""
    assert host.op_supported(host.DEVICE, run.build.exp(run.input(1))) is None


def test_two_sets_of_plugins(run):
    """One that closes the device breaks nothing for the other."""
    one, other = Plugins(only=""), Plugins(only="")
    for each in (one, other):
        each.open(each.find("host"))
    graph = run.graph(run.build.exp(run.input(2, 2)))
    host.graph_compute(host.DEVICE, graph)
    one.close()
    host.graph_compute(host.DEVICE, graph)
    host.sync(host.DEVICE)
    other.close()
    assert host._open["host:0"].programs == {}

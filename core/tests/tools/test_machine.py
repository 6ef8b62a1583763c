"""What `umbel doctor` says of machines that are not as they should be."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from umbel import host
from umbel.tools import machine


def levels(check):
    return [finding.level for finding in check()]


@pytest.fixture
def on_machine(monkeypatch):
    """A machine of so many processors that are free, a quota and threads of BLAS."""

    def pretend(cpus, quota, threads, load=0.0):
        monkeypatch.setattr(host, "cpus", lambda: cpus)
        monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
        monkeypatch.setattr(host, "set_threads", lambda wanted: threads)
        monkeypatch.setattr("os.getloadavg", lambda: (load, load, load), raising=False)

    return pretend


@pytest.mark.parametrize(
    ("files", "own", "quota"),
    [
        ({}, "", math.inf),
        ({"cpu.max": "max 100000"}, "0::/", math.inf),
        ({"cpu.max": "400000 100000"}, "0::/", 4.0),
        ({"cpu.max": "765000 100000"}, "", 7.65),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 2.0),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, "", 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "", math.inf),
        (
            {"cpu,x/d/cpu.cfs_quota_us": "50000", "cpu,x/d/cpu.cfs_period_us": "100000"},
            "3:cpu,x:/d",
            0.5,
        ),
        ({"cpu.max": "many few"}, "no colons", math.inf),
        ({"cpu.max": "100000 0"}, "0::/", math.inf),
    ],
)
def test_quota(tmp_path, files, own, quota):
    """Both versions of control groups; a limit of a parent counts; nonsense is no limit."""
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)

    assert machine.cpu_quota(tmp_path / "root", tmp_path / "own") == quota


@pytest.mark.parametrize(
    ("cpus", "quota", "most"), [(8, math.inf, 8), (8, 7.65, 7), (2, 4.0, 2), (4, 0.5, 1)]
)
def test_usable_processors(on_machine, cpus, quota, most):
    """The smaller of what is allowed and what is paid for, at least one."""
    on_machine(cpus, quota, cpus)

    assert machine.usable_processors() == most


def test_more_threads_than_the_container_allows(on_machine):
    """Threads that wait for their share hold up all others: that is told, with a cure."""
    on_machine(8, 1.5, 8)
    (finding,) = machine.processors()

    assert finding.level == "warning"
    assert "1.5 processors' time" in finding.what
    assert "--threads 1" in finding.do


def test_busy_machine(on_machine):
    """Somebody else's load is no fault."""
    on_machine(2, math.inf, 2, load=7.0)

    assert levels(machine.processors) == ["ok", "note"]


def test_limit_of_threads(on_machine, monkeypatch):
    """A forgotten variable is named."""
    on_machine(8, math.inf, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    assert "OMP_NUM_THREADS=1" in [finding.what for finding in machine.blas()][-1]


@pytest.mark.parametrize("name", ["", "blas", "none"])
def test_slow_blas(monkeypatch, name):
    """NumPy without an optimised library works, and is slow."""
    built = {"Build Dependencies": {"blas": {"name": name}}} if name else {}
    monkeypatch.setattr(np, "show_config", lambda mode: built)

    assert levels(machine.blas) == ["warning"]


def test_broken_library(monkeypatch):
    """A library that cannot be imported is an error; the others are told."""
    monkeypatch.setitem(sys.modules, "regex", None)
    broken, others = machine.libraries()

    assert (broken.level, others.level) == ("error", "ok")
    assert broken.what.startswith("regex cannot be imported")
    assert broken.do == "pip install --force-reinstall regex"
    assert f"numpy {np.__version__}" in others.what


@pytest.mark.parametrize(
    ("total", "free", "level"),
    [(8 << 30, 4 << 30, "ok"), (8 << 30, 9, "warning"), (0, 0, "note")],
)
def test_memory(monkeypatch, total, free, level):
    """Little memory is a warning; a system that does not tell is none."""
    monkeypatch.setattr(host, "memory", lambda: (total, free))

    assert levels(machine.memory) == [level]


def test_disk(monkeypatch, tmp_path):
    """The disk that the hub's files go to, also when the folder is still to be made."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "yet"))
    asked = []
    usage = SimpleNamespace(free=1 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda place: asked.append(place) or usage)
    (finding,) = machine.disk()

    assert asked == [tmp_path]
    assert (finding.level, "1.0 MiB" in finding.what) == ("warning", True)


@pytest.mark.parametrize(
    ("endpoint", "offline", "expected"),
    [("", "0", []), ("https://hub.test", "1", ["note", "note"]), ("hub.test", "", ["warning"])],
)
def test_hub(monkeypatch, endpoint, offline, expected):
    """Variables that turn downloads elsewhere are told; one that cannot work is a warning."""
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)

    assert levels(machine.hub) == expected


@pytest.mark.parametrize(
    ("stream", "level"),
    [
        (SimpleNamespace(encoding="UTF-8"), "ok"),
        (SimpleNamespace(encoding="ANSI_X3.4-1968"), "warning"),
        (SimpleNamespace(encoding=None), "warning"),
        (None, "warning"),
    ],
)
def test_terminal(monkeypatch, stream, level):
    """Text in another encoding than UTF-8 loses letters."""
    monkeypatch.setattr(sys, "stdout", stream)

    assert levels(machine.terminal) == [level]


def test_32_bit(monkeypatch):
    """It works, up to a size of file."""
    monkeypatch.setattr(sys, "maxsize", (1 << 31) - 1)

    assert levels(machine.python) == ["warning"]

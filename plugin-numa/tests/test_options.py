"""The options, and what becomes of them on recorded machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import umbel_numa
from umbel import plugins
from umbel.errors import OptionError
from umbel.hookspecs import Finding
from umbel_numa import findings
from umbel_numa.library import FORCED, variants
from umbel_numa.options import OPTIONS
from umbel_numa.placement import Placement, placement
from umbel_numa.topology import Node, Topology, read

COPIES, WHOLE = "numa.mode=mirror makes no copies", "numa.experts=whole has no effect"


def machine(nodes: int, cpus: int = 4, cores: int | None = None, **more: Any) -> Topology:
    """So many nodes with so many CPUs each."""
    made = [
        Node(n, tuple(range(n * cpus, (n + 1) * cpus)), 1 << 30, 1 << 29, (), cores or cpus)
        for n in range(nodes)
    ]
    return Topology(tuple(made), here=0, **more)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mode", "both"),
        ("mode", ""),
        ("experts", "some"),
        ("threads", "-1"),
        ("threads_prefill", "many"),
        ("threads_prefill", "1.5"),
        ("precise", "perhaps"),
        ("theads", "1"),
    ],
)
def test_what_is_wrong_is_refused(name: str, text: str) -> None:
    found = plugins.get()
    found.load()
    with pytest.raises(OptionError) as caught:
        found.option_values("numa", {name: text})
    assert name in str(caught.value)
    assert "Error" not in str(caught.value)


def test_defaults() -> None:
    values = {option.name: option.default for option in OPTIONS}
    assert values["mode"] == "auto"
    where = placement(values, machine(2, 4, cores=2))
    assert where.cpus == (0, 1, 4, 5)
    assert (where.decode, where.prefill, where.numbers) == (4, 4, (0, 1))
    assert not where.chosen
    assert where.pinned


@pytest.mark.parametrize(
    ("options", "decode", "prefill", "made"),
    [
        ({"threads": 3}, 3, 3, 3),
        ({"threads": 3, "threads_prefill": 5}, 3, 5, 5),
        ({"threads": 6, "threads_prefill": 2}, 6, 2, 6),
        ({"threads_prefill": 3}, 8, 3, 8),
        ({"threads": 1}, 1, 1, 1),
    ],
)
def test_threads(options: dict[str, Any], decode: int, prefill: int, made: int) -> None:
    where = placement(options, machine(2))
    assert (where.decode, where.prefill, len(where.cpus)) == (decode, prefill, made)
    assert where.chosen


def test_fewer_threads_than_nodes(caplog: pytest.LogCaptureFixture) -> None:
    """A node that holds rows has to compute them."""
    where = placement({"threads": 1, "threads_prefill": 4}, machine(2))
    assert (where.decode, where.prefill) == (2, 4)
    assert "fewer threads (1) than nodes that hold weights (2)" in caplog.text


def test_fewer_threads_for_prompts_than_nodes(caplog: pytest.LogCaptureFixture) -> None:
    where = placement({"threads_prefill": 1}, machine(2))
    assert (where.decode, where.prefill) == (8, 2)
    assert "fewer threads (1) than nodes that hold weights (2)" in caplog.text


@pytest.mark.parametrize(
    ("options", "nodes", "told"),
    [
        ({"mode": "mirror"}, 1, [COPIES]),
        ({"mode": "mirror", "experts": "whole"}, 1, [COPIES, WHOLE]),
        ({"mode": "isolate", "experts": "whole"}, 2, [WHOLE]),
        ({"mode": "off", "experts": "whole"}, 2, [WHOLE]),
        ({"mode": "mirror", "experts": "whole"}, 2, []),
        ({"mode": "distribute", "experts": "rows"}, 1, []),
        ({}, 1, []),
    ],
)
def test_what_has_no_effect_on_one_node(
    options: dict[str, Any], nodes: int, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    placement(options, machine(nodes))
    lines = [f"{what}: no second node is used" for what in told]
    assert [record.getMessage() for record in caplog.records] == lines


def test_far_too_many_threads_are_capped(caplog: pytest.LogCaptureFixture) -> None:
    found = plugins.get()
    found.load()
    where = placement(found.option_values("numa", {"threads": 10**6}), machine(2))
    assert (len(where.cpus), where.decode, where.prefill) == (64, 64, 64)
    assert [record.getMessage() for record in caplog.records] == [
        "1000000 threads are more than the 8 CPUs granted: 64 it is"
    ]


def test_no_threads_are_as_many_as_there_would_be() -> None:
    assert placement({"threads": 0}, machine(2)) == placement({}, machine(2))


def test_tuned_threads_find_room() -> None:
    where = placement({}, machine(1, 8, cores=4), tuned=[3, 6])
    assert (len(where.cpus), where.decode, where.prefill) == (6, 4, 4)
    assert placement({"threads": 2}, machine(1, 8), tuned=[6]).cpus == (-1, -1)


def test_a_quota_is_kept() -> None:
    where = placement({}, machine(2, 4, quota=3.0))
    assert len(where.cpus) == 3


@pytest.mark.parametrize(
    ("mode", "numbers", "pinned"),
    [
        ("auto", (0, 1), True),
        ("distribute", (0, 1), True),
        ("mirror", (0, 1), True),
        ("numactl", (0, 1), True),
        ("isolate", (0,), True),
        ("off", (-1,), False),
    ],
)
def test_modes(mode: str, numbers: tuple[int, ...], pinned: bool) -> None:
    where = placement({"mode": mode, "experts": "whole"}, machine(2))
    assert (where.numbers, where.pinned) == (numbers, pinned)
    assert (where.mode, where.experts) == (mode, "whole")


def test_more_nodes_than_the_engine_numbers(caplog: pytest.LogCaptureFixture) -> None:
    where = placement({}, machine(17, 1))
    assert (len(where.cpus), set(where.nodes), where.numbers) == (17, {0}, (-1,))
    assert "17 NUMA nodes are more than 16" in caplog.text


def test_free() -> None:
    assert Placement.free(3).count(0) == 3
    assert not Placement.free(3).pinned


# the open device


def test_status_tells_where_threads_are() -> None:
    found = plugins.get()
    found.close()
    device = umbel_numa.DEVICE
    before = umbel_numa.status(device)
    try:
        given = {"threads": "2", "mode": "off", "threads_prefill": "1"}
        target = found.open(found.find("numa"), {"numa": given})
        told = {**umbel_numa.status(device)}
        for key, value in target.info.details.items():
            assert told[key] == value or key == "pinned"
    finally:
        found.close()
    assert (told["threads"], told["threads_prefill"], told["nodes"]) == (2, 1, [])
    assert (told["mode"], told["pinned"]) == ("off", 0)
    assert told["kernels"] in variants()
    assert "threads" not in before


# doctor


def levels(found: list[Finding], part: str) -> list[str]:
    return [f.level for f in found if part in f.what]


def tree(root: Path, **settings: str) -> Path:
    """A recorded machine of two nodes."""
    for n in range(2):
        folder = root / f"sys/devices/system/node/node{n}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text("0-1" if n == 0 else "2-3")
        (folder / "meminfo").write_text(f"Node {n} MemTotal: 9 kB\nNode {n} MemFree: 9 kB\n")
        (folder / "distance").write_text("10 21" if n == 0 else "21 10")
    (root / "sys/devices/system/node/online").write_text("0-1")
    for path, text in settings.items():
        file = root / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


HUGE = "sys__kernel__mm__transparent_hugepage__enabled"
BALANCING = "proc__sys__kernel__numa_balancing"


def test_doctor_of_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, **{HUGE: "always madvise [never]", BALANCING: "1"})
    monkeypatch.setattr(findings, "read", lambda root: read(root, affinity=range(4)))
    monkeypatch.setattr(findings, "may_ask", lambda: False)
    found = list(findings.findings(root))

    assert levels(found, "4 threads by default (node 0: 2 CPUs, node 1: 2 CPUs)") == ["ok"]
    assert levels(found, "huge pages are off") == ["warning"]
    assert levels(found, "numa_balancing") == ["warning"]
    assert levels(found, "move_pages is refused") == ["warning"]
    assert all(f.do for f in found if f.level == "warning")


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        (machine(1, 1), "1 thread by default (node 0: 1 CPU)"),
        (machine(1, 8, cores=4), "4 threads by default (node 0: 8 CPUs of 4 cores)"),
        (machine(1, 2, cores=1, quota=1.5), "1 thread by default (node 0: 2 CPUs of 1 core)"),
    ],
)
def test_doctor_tells_how_many_threads(
    machine: Topology, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "read", lambda _: machine)
    assert levels(list(findings.findings()), told) == ["ok"]


def test_doctor_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    slowest = list(variants())[-1]
    assert levels(list(findings.findings()), "kernels ") == ["ok"]
    monkeypatch.setenv(FORCED, slowest)
    assert levels(list(findings.findings()), f"{FORCED}={slowest} forces") == ["note"]
    monkeypatch.setenv(FORCED, "none")
    assert [f.level for f in findings.findings()] == ["error"]


def test_doctor_names_what_the_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCED, raising=False)
    monkeypatch.setattr(findings, "variants", lambda: {"avx512": False, "avx2": True})
    monkeypatch.setattr(findings, "variant", lambda: "avx2")
    assert levels(list(findings.findings()), "AVX-512") == ["note"]
    monkeypatch.setattr(findings, "variants", lambda: {"avx512": True, "avxvnni": False})
    monkeypatch.setattr(findings, "variant", lambda: "avx512")
    assert levels(list(findings.findings()), "faster kernels") == []
    monkeypatch.setattr(findings, "variants", lambda: {"avx2": False, "scalar": True})
    monkeypatch.setattr(findings, "variant", lambda: "scalar")
    assert levels(list(findings.findings()), "slow kernels") == ["warning"]

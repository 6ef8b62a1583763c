"""`umbel plan`: what runs where, and why."""

from __future__ import annotations

import re

import pytest


def test_host(umbel, story):
    """A plan for one token and one for a prompt, and the memory they take."""
    done = umbel("plan", story)

    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0] == "1 of 256 tokens: 79 nodes in 1 split"
    assert lines.count("512 of 512 tokens: 79 nodes in 1 split") == 1
    assert lines.count("  host:0  36  mul_mat") == 2
    assert lines[-2].split() == ["device", "weights", "state", "compute"]
    assert "host:0  1.0 MiB  0.6 MiB" in lines[-1]


def test_nodes(umbel, story):
    """--nodes lists every node."""
    out = umbel("plan", story, "--nodes").out

    indexes = re.findall(r"^  (\d+) +\w+ .*  host:0  runs there$", out, re.MULTILINE)
    assert [str(i) for i in range(79)] * 2 == indexes


def test_two_devices(umbel, story, toy):
    """What a device refuses goes to the next, or in pieces; the reasons are told."""
    done = umbel("plan", story, "--device", "toy")

    assert done.code == 0
    assert re.search(r"  toy:0   \d+ +mul_mat", done.out)
    assert re.search(r"  host:0  \d+ +get_rows", done.out)
    assert re.search(r"host:0 +\d+ get_rows +toy:0: not in a toy", done.out)
    assert re.search(r"toy:0 +10 swiglu +decomposed: toy:0: not in a toy", done.out)
    assert re.search(r"\ntoy:0 +1.0 MiB", done.out)


def test_simulated_device(umbel, story, add_toy):
    """A simulated device is called so; it is used only when it is named."""
    add_toy(simulated=True)

    assert "toy:0" not in umbel("plan", story).out
    assert "toy:0 (simulated)" in umbel("plan", story, "--device", "toy").out


@pytest.mark.parametrize(("name", "nodes"), [("bert", "128 of 128"), ("mamba", "1 of")])
def test_other_kinds(umbel, oracles, name, nodes):
    """Encoders and recurrent models have plans too."""
    done = umbel("plan", str(oracles / f"{name}.gguf"))

    assert done.code == 0
    assert done.out.startswith(f"{nodes} ")

"""The library for aarch64, cross-compiled and run under qemu: which kernels it chooses, that
they are right, and that they give the bits of this processor's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import machine
import pytest
import results

KERNELS = ("scalar", "dotprod", "i8mm")
SCRIPT = str(Path(results.__file__))
CHOSEN = "from umbel_numa.library import variant; print(variant())"
SUITE = ("-p", "no:cacheprovider", "-q", "--pyargs", "umbel_kit.conformance.test_ops")


def failed(done: subprocess.CompletedProcess[str]) -> str:
    """What a program said before it failed; empty if it did not."""
    return f"{done.stdout}{done.stderr}"[-4000:] if done.returncode else ""


@pytest.mark.parametrize(
    ("cpu", "kernels"),
    [
        ("cortex-a53", "scalar"),
        ("cortex-a72", "scalar"),
        ("cortex-a76", "dotprod"),
        ("neoverse-n1", "dotprod"),
        ("max", "i8mm"),
    ],
)
def test_chosen(folder, cpu, kernels):
    """The best kernels that a processor has the instructions for."""
    done = machine.run(folder, cpu, "-c", CHOSEN)
    assert failed(done) == ""
    assert done.stdout.split() == [kernels]


def test_forced(folder):
    """Kernels that the processor lacks instructions for are refused, not tried."""
    done = machine.run(folder, "cortex-a72", "-c", CHOSEN, env={"UMBEL_NUMA_KERNELS": "i8mm"})
    assert done.returncode == 1
    assert "this processor cannot run kernels called 'i8mm'" in done.stderr


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("cpu", "kernels"),
    [("cortex-a53", "scalar"), *(("max", kernels) for kernels in KERNELS)],
)
def test_same_bits(folder, here, tmp_path, cpu, kernels):
    """Every case of the suite that the device takes: on each side the same."""
    path, env = tmp_path / "there.npz", {"UMBEL_NUMA_KERNELS": kernels}
    done = machine.run(folder, cpu, SCRIPT, str(path), str(here), env=env)
    assert failed(done) == ""
    assert results.differences(here, path) == {}


@pytest.mark.timeout(3600)
def test_conformance(folder):
    """Right values, by the reference that is computed on the same side."""
    done = machine.run(folder, "max", "-m", "pytest", *SUITE, "--umbel-device", "numa")
    assert failed(done) == ""

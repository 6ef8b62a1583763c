"""The library for aarch64, cross-compiled and run under qemu: which kernels it chooses, that
they give the bits of this processor's, and pages of another size.

That the results are right need not be said again: `nox -s native` does, of the same bits.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import machine
import pytest
import results

LARGE = 65536  # bytes of a page, as some Arm kernels have them
SCRIPT = str(Path(results.__file__))
CHOSEN = "from umbel_numa.library import variant; print(variant())"
SIZE = "from umbel_numa.pages import page_size; print(page_size())"
TESTS = Path(__file__).parents[2] / "plugin-numa/tests"


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
    ("cpu", "kernels", "page"),
    [
        ("cortex-a53", "scalar", 4096),
        ("neoverse-n1", "dotprod", 4096),
        ("max", "i8mm", LARGE),
    ],
)
def test_same_bits(folder, here, tmp_path, cpu, kernels, page):
    """Of every case of the suite that the device takes, and of whole models."""
    path, env = tmp_path / "there.npz", {"UMBEL_NUMA_KERNELS": kernels}
    done = machine.run(folder, cpu, SCRIPT, str(path), str(here), page=page, env=env)
    assert failed(done) == ""
    assert results.differences(here, path) == {}


@pytest.mark.timeout(900)
def test_large_pages(folder, tmp_path):
    """The plugin's tests of memory. Qemu places no pages on nodes, and starts no programs."""
    done = machine.run(folder, "max", "-c", SIZE, page=LARGE)
    assert (failed(done), done.stdout.split()) == ("", [str(LARGE)])
    how = ("-p", "no:cacheprovider", "-q", "-k", "not refusing", f"--basetemp={tmp_path}/made")
    names = ("native/test_pages.py", "test_memory.py", "test_slabs.py")
    files = (str(TESTS / name) for name in names)
    suite = ("--pyargs", "umbel_kit.conformance.test_memory", "--umbel-device", "numa")
    tests, env = (*how, *files, *suite), {"CC": machine.COMPILER}
    done = machine.run(folder, "max", "-m", "pytest", *tests, page=LARGE, env=env)
    assert failed(done) == ""

"""`umbel devices`: what is here, the best one first."""

from __future__ import annotations


def test_host(umbel):
    """The host is always here."""
    done = umbel("devices")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("host:0  priority 0  NumPy on the CPU  memory_total ")


def test_order(umbel, toy):
    """The best device comes first."""
    first, second = umbel("devices").out.splitlines()

    assert first.split() == ["toy:0", "priority", "10", "a", "toy"]
    assert second.startswith("host:0  priority 0")


def test_simulated_device(umbel, add_toy):
    """A simulated device is called so wherever it stands."""
    add_toy(simulated=True)

    assert umbel("devices").out.startswith("toy:0 (simulated)  priority 10  a toy\n")


def test_status_that_fails(umbel, add_toy):
    """A device whose status cannot be asked stays in the list; a note points at the fault."""

    def status(device):
        raise RuntimeError(device.name)

    add_toy(status=status)

    done = umbel("devices")

    assert done.code == 0
    assert "toy:0   priority 10  a toy" in done.out
    assert "failed in status(toy:0): RuntimeError: toy:0" in done.out
    assert done.err == "umbel: note: something failed; `umbel plugins` tells what\n"

"""The contract, clause by clause: what there is before and around `open`."""

import subprocess
import sys

import pytest
from umbel import cli
from umbel.errors import OptionError


def test_sizes(examples):
    """They are there to be read."""
    most = {"extra-operation": 60, "toy-accelerator": 300}
    for name, lines in most.items():
        files = [f for f in (examples / name).rglob("*.py") if "build" not in f.parts]
        assert 0 < sum(len(f.read_text().splitlines()) for f in files) <= lines


def test_nothing_begins_before_open():
    """Neither the import nor `devices()` starts the machine's thread."""
    code = "import threading, umbel_toy; print(umbel_toy.devices()[0].name, end=' ')"
    code += "; print(threading.active_count())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "toy:0 1\n"


def test_open_close_and_open_again(found, toys):
    """One machine at a time; options are parsed, kept and refused."""
    device = found.find("toy")
    assert found.open(device).info.memory_total == 1 << 30
    assert found.open(device, {"toy": {"memory": "1073741824"}}) is found.open(device)
    assert len(toys()) == 1
    for bad, why in (("7", "already open"), ("much", "cannot be 'much'")):
        with pytest.raises(OptionError, match=why):
            found.open(device, {"toy": {"memory": bad}})
    found.close()
    assert not toys()
    assert found.open(device, {"toy": {"memory": 4096}}).info.memory_free == 4096


def test_asked_while_closed(found):
    """`status`, `cancel` and `forget` may come at any time."""
    device = found.find("toy")
    toy = found.backends["toy"]
    assert toy.status(device) == {}
    assert toy.cancel(device) is toy.forget(device, 1) is None


def test_a_simulated_device_is_named_or_not_taken(found):
    assert found.find("auto").name == "host:0"
    assert found.find("toy").title == "toy:0 (simulated)"


def test_commands(toy, capsys):
    """Status, findings and the command of its own come to the command line."""
    for command, expected in (
        ("devices", "memory_free 16.0 MiB, programs 0"),
        ("doctor", "the toy is made of software and works everywhere"),
        ("toy", "set_rows\nkv_attention\n"),
    ):
        assert cli.main([command]) == 0
        assert expected in capsys.readouterr().out

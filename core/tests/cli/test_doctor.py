"""`umbel doctor`: what is in the way, and what to do about it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from umbel import gguf, host, plugins
from umbel.errors import DeviceError
from umbel.hookspecs import Finding
from umbel.tools import doctor, machine


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """A machine of which there is one good thing to say, and no variable for plugins."""
    monkeypatch.setattr(doctor, "CHECKS", {"python": machine.python})
    monkeypatch.delenv(plugins.VARIABLE)


def row(done, topic):
    """Level and text of the first row about `topic`."""
    for line in done.out.partition("\n\n")[0].splitlines():
        level, _, rest = line.partition(" ")
        if rest.strip().startswith(f"{topic} "):
            return level, rest.strip()[len(topic) :].strip()
    raise AssertionError(done.out)


def test_all_is_well(umbel):
    """Nothing to do, and the code of success."""
    done = umbel("doctor")

    assert (done.code, done.err) == (0, "")
    assert row(done, "plugin host") == ("ok", "built in: host:0")
    assert row(done, "device")[1].startswith("auto is host:0: NumPy on the CPU, ")
    assert done.out.endswith("\n\nNothing to do.\n")


def test_finding_of_a_plugin(umbel, toy):
    """A warning of a plugin is told with its cure, and is no failure."""
    done = umbel("doctor")

    assert done.code == 0
    assert "warning  plugin toy" in done.out
    assert done.out.endswith("\n\nTo do:\n* plugin toy: tighten it\n")


def test_of_one_device(umbel, toy):
    """Named devices: nothing is told of the plugins of others."""
    for name, told in (("host", False), ("toy", True), ("host,toy:0", True)):
        done = umbel("doctor", "--device", name)

        assert ("plugin toy" in done.out) == told, name
        assert ("plugin host" in done.out) == ("host" in name), name


def test_json(umbel, toy):
    """JSON has the same."""
    told = json.loads(umbel("doctor", "--json").out)

    assert {"topic", "level", "what", "do"} == set(told["findings"][0])
    assert "tighten it" in [finding["do"] for finding in told["findings"]]


def raising(error):
    def hook():
        raise error

    return hook


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (raising(ValueError("no wheels")), "doctor(): ValueError: no wheels"),
        (raising(DeviceError("no driver")), "doctor(): no driver"),
        (raising(SystemExit(3)), "doctor(): SystemExit: 3"),
        (lambda: "all is well", "expected Sequence[Finding]"),
        (lambda: ["all is well"], "expected Sequence[Finding]"),
        (lambda: [Finding("fatal", "it")], "'level' must be in"),
        (lambda: time.sleep(60), "doctor(): no answer within 0.05 s"),
    ],
)
def test_doctor_that_fails(umbel, add_toy, monkeypatch, hook, reason):
    """Whatever the hook of a plugin does: it is that plugin's fault, and the rest is told."""
    monkeypatch.setattr(doctor, "TIME_LIMIT", 0.05)
    add_toy(doctor=hook)

    done = umbel("doctor")

    level, what = row(done, "plugin toy")
    assert (done.code, level) == (1, "error")
    assert reason in what
    assert row(done, "device")[0] == "ok"
    assert "* plugin toy: mend, update or uninstall it" in done.out


def test_debug(umbel, add_toy):
    """--debug shows where a plugin failed, and leaves stdout to the findings."""
    add_toy(doctor=raising(ValueError("no wheels")))

    done, debug = umbel("doctor", "--json"), umbel("doctor", "--json", "--debug")

    assert (done.err, done.out) == ("", debug.out)
    assert "Traceback" in debug.err


def test_status_that_fails(umbel, story, add_toy):
    """A device that cannot tell its health is told, and what is known of the model, too."""

    def status(device):
        raise RuntimeError(device.name)

    add_toy(status=status)

    done = umbel("doctor", story)

    assert row(done, "device")[0] == "error"
    assert row(done, "model")[0] == "ok"


def test_plugin_that_prints(umbel, add_toy):
    """stdout is not the plugin's."""
    add_toy(doctor=lambda: print("I was here") or [])

    done = umbel("doctor", "--json")

    assert json.loads(done.out)
    assert "I was here" in done.err


def test_plugin_that_is_not_there(umbel, monkeypatch):
    """Plugins that the variable names and nobody offers."""
    monkeypatch.setenv(plugins.VARIABLE, "gone")
    monkeypatch.setattr(plugins, "_process", plugins.Plugins())

    done = umbel("doctor")

    assert done.code == 1
    assert row(done, "plugin gone") == (
        "error",
        "UMBEL_PLUGINS: no installed distribution offers it",
    )
    assert row(done, "plugins") == ("note", "UMBEL_PLUGINS='gone' leaves the others out")


def test_device_that_is_not_there(umbel, story):
    """A device that was named is an error, and the model is looked at nevertheless."""
    done = umbel("doctor", "--device", "numa", story)

    assert (done.code, done.out.count("there is no device 'numa'")) == (1, 1)
    assert row(done, "model")[0] == "ok"


def test_check_that_fails(umbel, monkeypatch):
    """A system that is like no other takes nothing else down."""
    odd = {"disk": raising(PermissionError(13, "no", "/proc")), "python": machine.python}
    monkeypatch.setattr(doctor, "CHECKS", odd)

    done = umbel("doctor")

    assert done.code == 0
    assert row(done, "disk")[0] == "warning"
    assert row(done, "python")[0] == "ok"


def test_extras(umbel, monkeypatch):
    """An extra is there when all its libraries are; the command that brings it is told."""
    asked = ["attrs", "pluggy>=1; extra == 'a'", "no-such-lib; extra == 'b'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: asked)

    done = umbel("doctor")

    what = "not installed: pip install 'umbel-core[b]' brings no-such-lib"
    assert (row(done, "[a]"), row(done, "[b]")) == (("ok", "pluggy"), ("note", what))
    assert "Nothing to do" in done.out


def test_numpy_that_is_broken(umbel, monkeypatch):
    """Without its libraries Umbel cannot look around, but says which one it is."""
    monkeypatch.delitem(sys.modules, "umbel.tools.doctor", raising=False)
    monkeypatch.delattr("umbel.tools.doctor")
    monkeypatch.setitem(sys.modules, "umbel.tools.machine", None)

    done = umbel("doctor")

    assert (done.code, done.out) == (2, "")
    assert "a library is broken" in done.err
    assert "do: pip install" in done.err


def test_model(umbel, story):
    """Can it be opened, and what does it take?"""
    done = umbel("doctor", story, "--ctx", "64")

    level, what = row(done, "model")
    assert (done.code, level) == (0, "ok")
    assert what.startswith("stories260K.gguf can be opened (llama): 1.0 MiB of weights, ")
    assert what.endswith(" MiB for 64 tokens of context")


def test_damaged_model(umbel, story, tmp_path):
    """What is wrong with a file is a finding among the others."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(story).read_bytes()[:-100])

    done = umbel("doctor", str(cut))

    assert done.code == 1
    assert row(done, "model")[0] == "error"
    assert row(done, "device")[0] == "ok"


def test_context_that_does_not_fit(umbel, story):
    """More context than there is memory."""
    done = umbel("doctor", story, "--ctx", "2000000000")

    assert done.code == 1
    assert "does not fit into the memory of host:0" in row(done, "model")[1]
    assert "* model: take a smaller ctx" in done.out


def test_model_that_is_too_large(umbel, story, add_toy):
    """The device that would run it has too little memory."""
    add_toy(status=lambda device: {"memory_free": 1 << 20})

    done = umbel("doctor", story, "--ctx", "64")

    assert done.code == 0
    assert "warning  model" in done.out
    assert "toy:0 has 1.0 MiB free" in done.out
    assert "* model: take a smaller file" in done.out


def test_copies_that_do_not_fit(umbel, story, tmp_path, write_gguf, monkeypatch):
    """On the host, weights that are not float32 want room for float32 copies."""
    with gguf.open(story) as file:
        arrays = {n: (np.array(file.array(n), np.float16), 1) for n in file.tensors}
        path = write_gguf(tmp_path / "half.gguf", dict(file.metadata), arrays)
    monkeypatch.setattr(host, "memory", lambda: (1 << 30, 1900 << 10))

    done = umbel("doctor", str(path), "--ctx", "16")

    assert done.code == 0
    assert "float32 copies of the weights take 1.0 MiB" in done.out


@pytest.mark.parametrize(
    "words", [["no.gguf"], ["owner/repo:Q4_0"], ["--ctx", "0"], ["--ctx", "x"], ["--kv", "f64"]]
)
def test_wrong_argument(umbel, story, words):
    """What is given wrongly is an error as everywhere, and nothing is downloaded."""
    done = umbel("doctor", *words, *([story] if words[0][0] == "-" else []))

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("umbel: error: ")

"""`umbel bench --submit-report`: what the file holds, and what it does not."""

from __future__ import annotations

import functools
import getpass
import json
import platform
from pathlib import Path

import attrs
import numpy as np
import pytest
import umbel as package
from umbel import host, plugins
from umbel.errors import DeviceError
from umbel.hookspecs import hookimpl
from umbel.tools import report


@pytest.fixture
def bench(umbel, story, tmp_path):
    """Runs it; gives what happened and the report."""
    file = tmp_path / "report.md"

    def run(*words):
        few = ("-p", "8", "-n", "4", "-r", "1", "--submit-report", str(file))
        done = umbel("bench", story, *few, *words)
        return done, report.read(file.read_text("utf-8")) if file.exists() else {}

    return run


def test_what_it_holds(bench, tmp_path):
    """Versions, the machine, the model, and of each device all that it tells."""
    done, told = bench("--device", "host", "--json")

    assert (done.code, done.err.splitlines()) == (
        0,
        [f"umbel: {tmp_path}/report.md is written: look through it before you send it"],
    )
    assert (told["format"], told["umbel"]) == (report.FORMAT, package.__version__)
    assert told["python"].endswith(platform.python_version())
    assert told["plugins"]["host"] == "built in"
    assert {"python", "memory", "plugin host"} <= {f["topic"] for f in told["findings"]}
    (run,) = told["runs"]
    assert run["model"]["file"] == "stories260K.gguf"
    assert (run["model"]["architecture"], run["model"]["types"]) == ("llama", {"f32": 47})
    assert run["speeds"] == json.loads(done.out)
    (device,) = run["devices"]
    assert (device["name"], device["simulated"]) == ("host:0", False)
    assert min(device["memory"].values()) > 0
    assert device["status"]["memory_total"] > 0
    assert [plan["splits"] for plan in run["plans"]] == [1, 1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.md"]


def test_the_head_is_for_people(bench, tmp_path):
    bench("--device", "host")

    head = (tmp_path / "report.md").read_text().partition("```")[0]
    assert head.startswith("# Umbel report\n")
    assert "| host:0 | pp8 | " in head
    assert "host:0: the host's answer of " in head


def test_the_host_beside_itself(bench):
    """It is compared like any other: nothing differs."""
    (run,) = bench("--device", "host")[1]["runs"]

    beside = run["against_host"]
    assert (beside["same_answer"], beside["first_difference"]) == (True, None)
    assert (beside["largest_error"], beside["finite"]) == (0, True)
    assert beside["prompt_tokens"] + beside["answer_tokens"] == report.TOKENS


def test_several_devices(bench, add_toy):
    """A part for each; what runs elsewhere, what was said, what the plugin finds."""
    add_toy(simulated=True)

    done, told = bench("--device", "host,toy")

    assert done.code == 0
    _, run = told["runs"]
    names = [device["name"] for device in run["devices"]]
    assert (names, run["devices"][0]["simulated"]) == (["toy:0", "host:0"], True)
    away = run["plans"][0]["elsewhere"]
    assert [key for key in away if key.startswith("get_rows on host:0")] == [
        "get_rows on host:0: toy:0: not in a toy"
    ]
    assert any("does not run everything" in note for note in run["notes"])
    assert run["against_host"]["same_answer"]
    loose = {"topic": "plugin toy", "level": "warning", "what": "a wheel is loose"}
    assert {**loose, "do": "tighten it"} in told["findings"]


@pytest.fixture
def tells(monkeypatch):
    """tells(key=value): what a device tells of itself when it is opened."""

    def tell(**said):
        opened = host.open

        @hookimpl
        def open_it(device, options, kernels):
            return attrs.evolve(opened(device, options, kernels), details=said)

        monkeypatch.setattr(host, "open", open_it)

    return tell


def test_what_a_backend_tells_is_taken_as_it_is(bench, add_toy, tells):
    """Whatever a table of its own has: details, and a status that fails in the end."""
    calls = []

    def fails(device):
        calls.append(device.name)
        if len(calls) > 1:  # the first one is asked while the model is loaded
            raise DeviceError("no answer", where=device.name)
        return {}

    tells(verdicts={"Mm f16": "works", "Sort": "no kernel", "odd": object})
    add_toy(status=fails)

    device = bench("--device", "toy")[1]["runs"][0]["devices"][0]

    assert device["details"]["verdicts"]["Sort"] == "no kernel"
    assert isinstance(device["details"]["verdicts"]["odd"], str)
    assert "no answer" in device["status"]["error"]


@pytest.fixture
def observed(story):
    """A model on the host, and what it does."""
    with package.load(story, device="host", ctx=64) as model:
        yield model, report.observe(model, [], [])


def test_a_difference_is_measured(observed):
    """Where the answers part, and how much the host minds; the worst logit."""
    model, seen = observed
    tokens, logits = list(seen.tokens), seen.logits.copy()
    tokens[3] = (tokens[3] + 1) % model.tokenizer.n_vocab
    size = np.abs(logits).max()
    logits[2, 7] += size / 4

    found = report.compare(model, attrs.evolve(seen, tokens=tokens, logits=logits))

    assert (found["same_answer"], found["first_difference"]) == (False, 3)
    own = report._answer(model, seen.ids + seen.tokens[:3], 1)[0][-1]
    assert found["gap"] == pytest.approx((own[seen.tokens[3]] - own[tokens[3]]) / size)
    assert found["gap"] > 0
    assert found["largest_error"] == pytest.approx(0.25, rel=1e-3)
    one, other = found["texts"]
    assert one != other


def test_values_that_are_not_finite(observed, monkeypatch):
    """They are told, and the file is JSON all the same."""
    model, seen = observed
    logits = np.full_like(seen.logits, np.nan)

    found = report.compare(model, attrs.evolve(seen, logits=logits))

    assert not found["finite"]
    assert report._private({"x": found})["x"]["largest_error"] == "NaN"


def test_no_room_for_the_host(bench, add_toy, monkeypatch):
    """What was measured is kept."""
    load = package.load

    @functools.wraps(load)
    def scarce(path, *, device, **more):
        if device == "host":
            raise DeviceError("there is no room")
        return load(path, device=device, **more)

    add_toy()
    monkeypatch.setattr(package, "load", scarce)

    done, told = bench("--device", "toy")

    assert done.code == 0
    assert told["runs"][0]["against_host"] == {"error": "there is no room"}
    assert len(told["runs"][0]["speeds"]) == 2


@pytest.mark.parametrize("devices", ["toy", "host,toy"])
def test_a_device_that_fails(bench, add_toy, monkeypatch, devices):
    """The report has what was measured before, and the error; the command fails as ever."""

    works = host.graph_compute

    @hookimpl
    def broken(device, graph):
        if device.backend == "toy":
            raise DeviceError("the kernel failed", got="507015", do="look at the chip")
        return works(device, graph)

    monkeypatch.setattr(host, "graph_compute", broken)
    add_toy()

    done, told = bench("--device", devices)

    assert done.code == 2
    assert "the kernel failed" in done.err
    assert len(told["runs"]) == devices.count(",")
    assert told["failure"]["device"] == "toy"
    assert "507015" in told["failure"]["error"]
    assert {"python", "plugin toy"} <= {f["topic"] for f in told["findings"]}


def test_a_slip_of_the_user_is_no_report(umbel, tmp_path):
    """A model that is not there says nothing of a device."""
    file = tmp_path / "r.md"
    assert umbel("bench", "no.gguf", "--submit-report", str(file)).code == 2
    assert not file.exists()


def test_nothing_personal(umbel, story, tmp_path, monkeypatch, add_toy, tells):
    """The home folder, the names of the user and of the machine, wherever they stand."""
    home = tmp_path / "home" / "ada"
    (home / "models").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setenv("SUDO_USER", "lovelace")
    monkeypatch.setattr(platform, "node", lambda: "engine.example.org")
    model = home / "models/story.gguf"
    model.write_bytes(Path(story).read_bytes())
    said = {
        "log": f"{home}/.umbel/log",
        "of": "ada@engine, ada-lovelace, engine.example.org",
        "others": "Canada, engines, /media/ada/disk",
        f"{home}/key": [f"'{home}'", f"{home}2"],
    }
    tells(**said)
    add_toy()
    few = ("-p", "4", "-n", "2", "-r", "1", "--device", "toy")

    done = umbel("bench", str(model), *few, "--submit-report", str(tmp_path / "r.md"))

    assert done.code == 0
    text = (tmp_path / "r.md").read_text()
    for name in (str(home) + "/", "ada@", "lovelace", "engine.", "example"):
        assert name not in text
    details = report.read(text)["runs"][0]["devices"][0]["details"]
    assert details["log"] == "~/.umbel/log"
    assert details["of"] == "USER@HOST, USER-USER, HOST"
    assert details["others"] == "Canada, engines, /media/USER/disk"
    assert details["~/key"][0] == "'~'"


def test_names_that_many_have_stay(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(platform, "node", lambda: "localhost")
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv("HOME", "/")

    told = {"do": "log in as root on localhost: /etc"}
    assert report._private(told) == told


def test_another_report_is_replaced_and_nothing_else(bench, umbel, story, tmp_path):
    """A model that was named by a slip stays; a folder must be there."""
    bench("--device", "host")
    assert bench("--device", "host")[0].code == 0
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    done = umbel("bench", story, "--submit-report", str(model))
    assert (done.code, model.read_bytes()) == (2, b"GGUF")
    assert "this is another kind of file, and stays as it is" in done.err
    done = umbel("bench", story, "--submit-report", str(tmp_path / "no/r.md"))
    assert done.code == 2
    assert "there is no such folder to write to" in done.err


@pytest.mark.parametrize("text", ["", "# Umbel report\n", "```json\n{}\n```\n"])
def test_what_is_no_report(text):
    with pytest.raises(ValueError, match="does not begin with '# Umbel report', or has no"):
        report.read(text)


def test_a_text_with_fences_stays_whole():
    """Whatever a device says cannot end the block."""
    run = {"model": {"file": "m", "architecture": "a", "types": ["f32"]}, "speeds": []}
    run |= {
        "devices": [{"name": "x", "simulated": False, "d": "\n```\n```json\n"}],
        "notes": [],
    }
    run["against_host"] = {"error": "none"}
    data = {"umbel": "1", "python": "3", "system": "s", "findings": [], "runs": [run]}
    data["failure"] = {"device": "y", "error": "```"}

    assert report.read(report.text(data)) == data


def test_a_short_context(umbel, oracles, tmp_path):
    """A recurrent model with little room has its answer too."""
    file = tmp_path / "report.md"
    few = ("-p", "3", "-n", "2", "-r", "1", "--device", "host", "--submit-report", str(file))

    done = umbel("bench", str(oracles / "mamba.gguf"), *few)

    assert done.code == 0
    (run,) = report.read(file.read_text())["runs"]
    assert run["against_host"]["same_answer"]
    assert plugins.get() is not None

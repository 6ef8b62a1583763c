"""What the doctor says, on machines that are made up."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from ane_framework import Framework
from umbel.errors import DeviceError
from umbel.hookspecs import Finding
from umbel_ane import findings as doctor
from umbel_ane.drivers import choose


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch, framework: Framework) -> Framework:
    """An M4 under macOS 15.3, with all there is to have."""
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(choose, "architecture", lambda: "h16g")
    monkeypatch.setattr(doctor, "Rubicon", lambda: framework)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100e9))
    return framework


Said = Callable[[str], Finding]


@pytest.fixture
def said() -> Said:
    """said(part): the one finding with that part."""

    def find(part: str) -> Finding:
        (found,) = [f for f in doctor.findings() if part in f.what]
        return found

    return find


def test_all_is_well(mac: Framework) -> None:
    found = doctor.findings()
    assert {f.level for f in found} == {"ok", "note"}
    text = "\n".join(f.what for f in found)
    for part in ("macOS 15.3", "orion-m4-macos15", "System Integrity", "h16g, 16 cores"):
        assert part in text
    assert "engines" not in text
    assert not mac.objects
    assert not mac.unpooled


def test_the_background(mac, said) -> None:
    assert said("background").level == "note"


def test_linux(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert "UMBEL_ANE_SIMULATOR=orion-m4-macos15" in said("no Neural Engine").what
    assert len(doctor.findings()) == 1


@pytest.mark.parametrize(
    ("told", "level", "part"), [("", "note", "Intel Mac"), ("1", "error", "Rosetta")]
)
def test_intel(mac, monkeypatch, said, told: str, level: str, part: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "_sysctl", lambda name: told)
    assert said(part).level == level


@pytest.mark.parametrize(
    ("version", "level"),
    [("14.5", "warning"), ("15.0", "ok"), ("27.0.1", "ok"), ("28.0", "warning")],
)
def test_versions(mac, monkeypatch, said, version: str, level: str) -> None:
    monkeypatch.setattr(choose, "macos", lambda: version)
    (found,) = [f for f in doctor.findings() if f.what.startswith(f"macOS {version}")]
    assert found.level == level
    assert bool(found.do) == (level == "warning")


def test_no_rubicon(mac, monkeypatch, said) -> None:
    def missing() -> None:
        msg = "rubicon-objc is not installed"
        raise DeviceError(msg, do="pip install rubicon-objc")

    monkeypatch.setattr(doctor, "Rubicon", missing)
    assert (said("rubicon").level, said("rubicon").do) == ("error", "pip install rubicon-objc")


def test_rubicon_really_is_missing_here() -> None:
    if importlib.util.find_spec("rubicon"):
        pytest.skip("rubicon-objc is installed")
    with pytest.raises(DeviceError, match="rubicon-objc is not installed"):
        doctor.Rubicon()


def test_no_framework(mac, said) -> None:
    mac.missing_libraries.add("AppleNeuralEngine")
    found = said("cannot be loaded")
    assert found.level == "error"
    assert "coreml" in found.do


def test_a_changed_method(mac, said) -> None:
    mac.encodings["_ANEInMemoryModel", "unloadWithQoS:error:", False] = "B20@0:8I16"
    found = said("unloadWithQoS")
    assert found.level == "error"
    assert "B20@0:8I16" in found.what


def test_a_missing_method(mac, said) -> None:
    del mac.encodings["_ANEInMemoryModel", "purgeCompiledModel", False]
    assert said("purgeCompiledModel").level == "note"


def test_two_engines(mac, said) -> None:
    mac.method("_ANEDeviceInfo", "numANEs", "I16@0:8", lambda cls: 2, True)
    assert said("2 engines").level == "note"


def test_no_engine(mac, said) -> None:
    mac.method("_ANEDeviceInfo", "hasANE", "B16@0:8", lambda cls: False, True)
    assert said("no Neural Engine").level == "error"


def test_no_coremltools(mac, monkeypatch, said) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert said("coremltools is not installed").level == "note"


def test_a_full_disk(mac, monkeypatch, said) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1e9))
    assert said("1 GB free").level == "warning"


def test_no_temporary_folder(mac, monkeypatch, said, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    (found,) = doctor._room()
    assert found.level == "error"


@pytest.mark.parametrize(("name", "level"), [("m1", "note"), ("m99", "error")])
def test_a_simulator(monkeypatch, name: str, level: str) -> None:
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", name)
    (found,) = doctor.findings()
    assert found.level == level
    assert name in found.what
    assert ("permissive" in found.do) == (level == "error")

"""Which driver, and whose rules."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
from umbel.errors import DeviceError, OptionError
from umbel_ane import profile
from umbel_ane.drivers import choose


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(choose, "_private", lambda: "private")
    monkeypatch.setattr(choose, "_coreml", lambda: "coreml")


@pytest.mark.parametrize("name", profile.names())
def test_a_simulator(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By its variable or by its kind, for every kind of driver that a user may have set."""
    assert choose.driver(f"simulator:{name}").profile is profile.load(name)
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", name)
    assert choose.simulated() == name
    assert choose.rules() is profile.load(name)
    for kind in choose.KINDS:
        found = choose.driver(kind)
        assert found.simulated
        assert found.profile is profile.load(name)


def test_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert choose.simulated() is None
    with pytest.raises(DeviceError, match="no Neural Engine here") as caught:
        choose.driver()
    assert "UMBEL_ANE_SIMULATOR=" in str(caught.value)


def test_an_intel_mac(mac, monkeypatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(DeviceError) as caught:
        choose.driver()
    assert "Rosetta" in str(caught.value)


@pytest.mark.parametrize("kind", ["", "cuda", "simulator"])
def test_no_such_kind(mac, kind: str) -> None:
    with pytest.raises(OptionError, match="no such way"):
        choose.driver(kind)


def test_on_a_mac(mac) -> None:
    assert [choose.driver(kind) for kind in choose.KINDS] == ["private", "private", "coreml"]


@pytest.mark.parametrize("tools", [False, True])
def test_no_private_api(mac, monkeypatch, caplog, tools: bool) -> None:
    """Core ML instead, where it is there and nobody insisted; and it is told."""

    def fails() -> None:
        msg = "the private API is not the one that is known"
        raise DeviceError(msg)

    monkeypatch.setattr(choose, "_private", fails)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if tools else None)
    with pytest.raises(DeviceError, match="not the one"):
        choose.driver("private")
    if tools:
        assert choose.driver() == "coreml"
        assert "through Core ML, because: the private API" in caplog.text
    else:
        with pytest.raises(DeviceError, match="not the one"):
            choose.driver()


@pytest.mark.parametrize(
    ("chip", "system", "name"),
    [
        ("h13g", "14.5", "m1"),
        ("h13s", "27.0", "m1"),
        ("h16g", "15.3", "orion-m4-macos15"),
        ("h16g", "27.0.1", "m4-macos27"),
        ("h16s", "28.0", "m4-macos27"),
        ("h16g", "26.3", "orion-m4-macos15"),
        ("h14g", "15.7.4", "orion-m4-macos15"),
        ("h17g", "27.0", "orion-m4-macos15"),
        ("", "15.0", "orion-m4-macos15"),
    ],
)
def test_profiles(chip: str, system: str, name: str) -> None:
    found, why = choose.profile_of(chip, system)
    assert found.name == name
    assert ("not measured" in why) == ((chip[:3], system[:2]) in UNMEASURED)


UNMEASURED = {("h16", "26"), ("h14", "15"), ("h17", "27"), ("", "15")}


@pytest.mark.parametrize(
    ("brand", "chip"),
    [
        ("Apple M1 Pro\n", "h13g"),
        ("Apple M4\n", "h16g"),
        ("Apple M9\n", ""),
        ("VirtualApple", ""),
    ],
)
def test_the_chip_by_its_name(monkeypatch, brand: str, chip: str) -> None:
    told = SimpleNamespace(stdout=brand)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: told)
    assert choose.architecture() == chip


def test_the_rules_of_this_mac(mac, monkeypatch) -> None:
    monkeypatch.setattr(choose, "architecture", lambda: "h13g")
    assert choose.rules().name == "m1"
    monkeypatch.setattr(choose, "macos", lambda: "")
    assert choose.rules() is profile.load()

"""The archive for a machine without a network: installed from; odd arguments are refused."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import distributions
import pytest
import umbel
import wheelhouse

pytestmark = pytest.mark.isolation
LINUX = wheelhouse.PLATFORMS["linux-x86_64"]


def this_machine() -> tuple[str, str]:
    system = {"Linux": "linux", "Darwin": "macos"}[platform.system()]
    return f"{system}-{platform.machine()}", f"cp3{sys.version_info.minor}"


def test_installed_without_a_network(dist, tmp_path):
    """The line of its README, word for word, in a fresh environment."""
    target, tag = this_machine()
    archive = wheelhouse.gather(target, tag, dist)
    assert archive.name == f"umbel-wheelhouse-{target}-{tag}.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    house = tmp_path / archive.name.removesuffix(".tar.gz")
    readme = (house / "README.md").read_text("utf-8")
    (line,) = (line.split() for line in readme.splitlines() if " -m pip install " in line)
    python, *words = line
    assert python == f"python3.{sys.version_info.minor}"
    assert line[-1] == "umbel-core"
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    for distribution in ("umbel-core", "umbel-plugin-kit"):
        command = [str(programs / python), *words[:-1], distribution]
        subprocess.run([*command, "-q"], cwd=house, check=True, timeout=120)
    said = subprocess.run([programs / "umbel", "--version"], capture_output=True, check=True)
    assert said.stdout.decode().split()[-1] == umbel.__version__
    assert sorted(p.name for p in dist.glob(".*")) == []


def test_the_commands_for_a_board(dist, tmp_path):
    """Those of the page about Ascend NPUs, word for word: wheels for aarch64, and all of them.

    `pip wheel` is spared: the wheels are there.
    """
    page = (distributions.ROOT / "docs/backends/cann.md").read_text("utf-8")
    (build,) = re.findall(r"^\$ pip wheel (.*)$", page, re.M)
    (fetch,) = re.findall(r"^\$ (pip download .*)$", page, re.M)
    (install,) = re.findall(r"^\$ pip (install --no-index .*)$", page, re.M)
    assert build == "--no-deps -w wheels ./core ./plugin-cann"
    house = tmp_path / "wheels"
    house.mkdir()
    for name in ("umbel_core", "umbel_plugin_cann"):
        (wheel,) = dist.glob(f"{name}-*.whl")
        (house / wheel.name).write_bytes(wheel.read_bytes())
    pip = f"{sys.executable} -m pip -q --disable-pip-version-check"
    command = fetch.replace("pip", pip, 1)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, timeout=250)
    wheels = [path.name for path in house.iterdir()]
    compiled = [name for name in wheels if not name.endswith("-none-any.whl")]
    assert any(name.startswith("numpy-") for name in compiled)
    assert [name for name in compiled if "aarch64" not in name or "-cp310-" not in name] == []
    board = wheelhouse.PLATFORMS["linux-aarch64"]
    assert wheelhouse._missing(house, board, "3.10") == []
    words = install.split()
    assert words[:4] == ["install", "--no-index", "--find-links", "wheels"]
    assert words[4:] == ["umbel-plugin-cann"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "required: PLATFORM, TAG"),
        (["linux-aarch64"], "required: TAG"),
        (["linux-riscv64", "cp311"], "invalid choice: 'linux-riscv64' (choose from 'linux-x86"),
        (["linux-aarch64", "3.11"], "'3.11' is no CPython that Umbel runs on: cp310, cp311,"),
        (["linux-aarch64", "cp39"], "'cp39' is no CPython that Umbel runs on"),
        (["linux-aarch64", "cp311", "more"], "unrecognized arguments: more"),
    ],
)
def test_odd_arguments(words, told, capsys):
    """They are refused before anything is built, with what there is."""
    with pytest.raises(SystemExit) as end:
        wheelhouse.main(words)
    assert end.value.code == 2
    assert told in capsys.readouterr().err.replace("linux-x86_64, ", "'linux-x86_64', ")


def test_no_wheel_for_that_machine(dist, tmp_path, monkeypatch, capsys):
    """What pip says is passed on, and no archive is left."""
    odd = wheelhouse.Platform(("nowhere_1_0",), "Nowhere", "nowhere", "none")
    monkeypatch.setitem(wheelhouse.PLATFORMS, "nowhere", odd)
    monkeypatch.setattr(wheelhouse.distributions, "build", lambda folder: None)
    monkeypatch.setattr(wheelhouse.distributions, "ROOT", tmp_path)
    (tmp_path / "dist").mkdir()
    for wheel in dist.glob("*.whl"):
        (tmp_path / "dist" / wheel.name).write_bytes(wheel.read_bytes())
    before = sorted((tmp_path / "dist").iterdir())
    assert wheelhouse.main(["nowhere", "cp311"]) == 2
    said = capsys.readouterr().err
    assert "wheelhouse: error: there is no whole set of wheels" in said
    assert "ERROR: No matching distribution found for" in said
    assert before == sorted((tmp_path / "dist").iterdir())


def write_wheel(folder: Path, name: str, *needs: str) -> None:
    lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {need}" for need in needs)]
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", "\n".join(lines) + "\n")


def test_what_the_other_machine_would_miss(tmp_path):
    """Markers are asked about its Python and system, extras where somebody wants them."""
    write_wheel(
        tmp_path, "one", 'old>=2; python_version < "3.11"', 'mac; sys_platform=="darwin"'
    )
    write_wheel(tmp_path, "two", "three[more]", 'never; extra == "test"')
    write_wheel(tmp_path, "three", 'wanted; extra == "more"', 'not-wanted; extra == "other"')
    assert wheelhouse._missing(tmp_path, LINUX, "3.10") == ["old>=2", "wanted"]
    assert wheelhouse._missing(tmp_path, LINUX, "3.11") == ["wanted"]
    mac = wheelhouse.PLATFORMS["macos-arm64"]
    assert wheelhouse._missing(tmp_path, mac, "3.12") == ["mac", "wanted"]

"""Every wheel and sdist: what is in it, what it says of itself, and that it installs alone."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest
import umbel
from distributions import DISTRIBUTIONS, ROOT, Distribution

pytestmark = pytest.mark.isolation
EVERY = pytest.mark.parametrize("made", DISTRIBUTIONS, ids=lambda made: made.name)
INFO = {"METADATA", "WHEEL", "RECORD", "top_level.txt", "licenses/LICENSE"}
IMPORT = "import {module}, sys; print({module}.__file__); print(*sys.modules)"


def sources(made: Distribution) -> set[str]:
    """The files under `src`, except what tools leave there."""
    src = ROOT / made.folder / "src"
    files = (path.relative_to(src) for path in src.rglob("*") if path.is_file())
    left = re.compile(r"__pycache__|\.egg-info|\.pyc$|\.so$|(^|/)\.")
    return {path.as_posix() for path in files if not left.search(path.as_posix())}


def packaged(made: Distribution) -> set[str]:
    """Those that a wheel has; a native library in place of what it is made from."""
    if not made.native:
        return sources(made)
    library = {name for name in made.data if name.endswith(".so")}
    return {name for name in sources(made) if not name.startswith(f"{made.native}/")} | library


def in_wheel(wheel: Path) -> tuple[set[str], dict[str, bytes]]:
    """The names of the files, and the contents of the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        info = {
            n.partition(".dist-info/")[2]: archive.read(n) for n in names if ".dist-info/" in n
        }
    return {name for name in names if ".dist-info/" not in name}, info


def in_sdist(sdist: Path) -> dict[str, bytes]:
    """The files without the folder that holds them all."""
    with tarfile.open(sdist) as archive:
        members = [member for member in archive if not member.isdir()]
        assert all(member.isfile() for member in members), "there is a link"
        files = {m.name: archive.extractfile(m) for m in members}
        (top,) = {name.partition("/")[0] for name in files}
        assert top == sdist.name.removesuffix(".tar.gz")
        return {n.partition("/")[2]: f.read() for n, f in files.items() if f is not None}


def metadata(wheel: Path) -> Message:
    return email.message_from_bytes(in_wheel(wheel)[1]["METADATA"])


@EVERY
def test_wheel(made, dist):
    """All that is under `src` and nothing else; data files, the licence."""
    wheels = made.wheels(dist)
    assert wheels
    for wheel in wheels:
        names, info = in_wheel(wheel)
        assert names == packaged(made)
        assert names >= set(made.data)
        assert set(info) - {"entry_points.txt"} == INFO
        assert info["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
        assert len([n for n in names if not n.startswith(f"{made.module}/")]) == 0
        platform = r"(manylinux_2_\d+|linux|macosx_\d+_\d+)_\w+" if made.native else "any"
        assert re.fullmatch(rf"{made.stem}-[\d.]+-py3-none-{platform}\.whl", wheel.name)


@EVERY
def test_sdist(made, dist):
    """The sources, what builds them, the licence; no tests, nothing that was left behind."""
    (sdist,) = made.sdists(dist)
    files = in_sdist(sdist)
    own = {f"src/{name}" for name in sources(made)}
    egg = {name for name in files if ".egg-info/" in name}
    beside = {"LICENSE", "PKG-INFO", "pyproject.toml", "setup.cfg"}
    beside |= {"setup.py"} if made.native else set()
    readme = {"README.md"} if (ROOT / made.folder / "README.md").exists() else set()
    assert set(files) - egg == own | beside | readme
    assert files["LICENSE"] == (ROOT / "LICENSE").read_bytes()


@EVERY
def test_metadata(made, dist):
    """A name, a licence, a description; one version, by which ours ask for each other."""
    ours = {other.name for other in DISTRIBUTIONS}
    for wheel in made.wheels(dist):
        says = metadata(wheel)
        assert (says["Name"], says["Version"]) == (made.name, umbel.__version__)
        assert (says["License-Expression"], says["License-File"]) == ("MIT", "LICENSE")
        assert says["Requires-Python"] == ">=3.10"
        assert len(says["Summary"]) > 20
        needs = [re.match(r"[\w.-]+", need)[0] for need in says.get_all("Requires-Dist", [])]
        for name, need in zip(needs, says.get_all("Requires-Dist", []), strict=True):
            assert name not in ours or need == f"{name}=={umbel.__version__}"


@EVERY
def test_entry_points(made, dist):
    """Those of pyproject.toml, each of a module that the wheel has."""
    text = (ROOT / made.folder / "pyproject.toml").read_text("utf-8")
    groups = re.findall(
        r"^\[project\.(?:entry-points\.)?(scripts|umbel|pytest11)\]", text, re.M
    )
    for wheel in made.wheels(dist):
        names, info = in_wheel(wheel)
        points = info.get("entry_points.txt", b"").decode()
        told = re.findall(r"^\[(\w+)\]", points, re.M)
        assert sorted(told) == sorted(g.replace("scripts", "console_scripts") for g in groups)
        for target in re.findall(r"= ([\w.]+)", points):
            path = target.replace(".", "/")
            assert names & {f"{path}.py", f"{path}/__init__.py"}, target


def test_the_ascend_plugin_needs_no_compiler(dist):
    """A board takes its wheel as it is, and nothing in the sdist is to be built."""
    (made,) = (d for d in DISTRIBUTIONS if d.name == "umbel-plugin-cann")
    (wheel,) = made.wheels(dist)
    names, info = in_wheel(wheel)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert b"Root-Is-Purelib: true" in info["WHEEL"]
    assert {Path(name).suffix for name in names} <= {".py", ".typed"}
    assert b"umbel-cann-setup = umbel_cann.setup_board:main" in info["entry_points.txt"]
    (sdist,) = made.sdists(dist)
    files = in_sdist(sdist)
    assert not [n for n in files if re.search(r"\.(c|h|cc|cpp|cxx|pyx|f90|rs|so|o)$", n)]
    assert "setup.py" not in files
    assert b"ext-modules" not in files["pyproject.toml"]


def test_an_index_would_take_them(dist):
    """As twine sees it."""
    archives = [p for d in DISTRIBUTIONS for p in (*d.wheels(dist), *d.sdists(dist))]
    command = [sys.executable, "-m", "twine", "check", *map(str, archives)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@EVERY
def test_installed_alone(made, dist, constraints, tmp_path):
    """In a fresh environment it brings what it needs, and is imported from there; without
    tests and without what only they need. Its devices are there, and nobody else's."""
    venv.create(tmp_path / "alone", with_pip=False)
    python = tmp_path / "alone" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-q", "--python", str(python), "install"]
    subprocess.run([*pip, "-c", str(constraints), made.name], check=True, timeout=250)
    code = IMPORT.format(module=made.module)
    command = [str(python), "-I", "-W", "error", "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    place, modules = said.stdout.splitlines()
    assert place.startswith(str(tmp_path / "alone"))
    assert "pytest" not in modules.split()
    listed = [str(python.with_name("umbel")), "devices"]
    said = subprocess.run(listed, capture_output=True, text=True, check=True, cwd=tmp_path)
    names = {line.split()[0] for line in said.stdout.splitlines()}
    assert names == {"host:0", *made.devices}

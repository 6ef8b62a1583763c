"""A new plugin: whole or not at all, under a name that works, and it passes its own tests."""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from umbel.errors import OptionError
from umbel_kit import scaffold

ROOT = Path(__file__).parents[2]
LEFTOVERS = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".*")


def files(folder: Path) -> list[str]:
    """All files and folders, hidden ones too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_files(tmp_path):
    """A distribution with a README, a module and tests, in which nothing has another's name."""
    folder = scaffold.write("my_npu", tmp_path)
    assert folder == tmp_path / "plugin-my_npu"
    assert files(tmp_path) == [
        "plugin-my_npu",
        "plugin-my_npu/README.md",
        "plugin-my_npu/pyproject.toml",
        "plugin-my_npu/src",
        "plugin-my_npu/src/umbel_my_npu",
        "plugin-my_npu/src/umbel_my_npu/__init__.py",
        "plugin-my_npu/tests",
        "plugin-my_npu/tests/test_my_npu.py",
    ]
    for path in filter(Path.is_file, folder.rglob("*")):
        text = path.read_text("utf-8")
        assert "my_npu" in text, path
        assert scaffold.PLACEHOLDER not in text, path


def test_what_python_compiled_is_left_out(tmp_path, monkeypatch):
    """pip compiles the template when it installs the kit."""
    template = tmp_path / "template"
    shutil.copytree(scaffold.TEMPLATE, template, ignore=LEFTOVERS)
    cache = template / "tests" / "__pycache__"
    cache.mkdir()
    (cache / "test_newname.cpython-311.pyc").write_bytes(b"\xff\x00")
    monkeypatch.setattr(scaffold, "TEMPLATE", template)
    made = files(scaffold.write("npu", tmp_path))
    assert "tests/test_npu.py" in made
    assert [path for path in made if "pyc" in path] == []


@pytest.mark.parametrize("name", ["n", "npu", "my_npu", "x1", "npu_2_b", "n" * 32, "newname"])
def test_names(tmp_path, name):
    """Small letters, digits, single underscores between."""
    assert (scaffold.write(name, tmp_path) / "src" / f"umbel_{name}").is_dir()


@pytest.mark.parametrize(
    "name",
    ["", "NPU", "my-npu", "1npu", "_npu", "npu_", "a__b", "n/pu", "..", "ñpu", "n" * 33, "a\n"],
)
def test_odd_names(tmp_path, name):
    """What is no module, distribution and device at once is refused."""
    with pytest.raises(OptionError, match="a backend cannot be called like that") as caught:
        scaffold.write(name, tmp_path)
    assert caught.value.got == repr(name)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["auto", "compare", "core", "host", "kit", "plugin", "run", "plan"]
)
def test_names_that_are_taken(tmp_path, name):
    """By the core, the kit, and the commands of `umbel`, to which a backend adds its own."""
    with pytest.raises(OptionError, match="Umbel uses that name itself"):
        scaffold.write(name, tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", ["folder", "file", "link to nothing"])
def test_something_is_there(tmp_path, kind):
    """It is left as it is."""
    there = tmp_path / "plugin-npu"
    if kind == "folder":
        there.mkdir()
        (there / "mine.txt").touch()
    elif kind == "file":
        there.touch()
    else:
        there.symlink_to(tmp_path / "nowhere")
    before = files(tmp_path)
    with pytest.raises(OptionError, match="there is such a folder already") as caught:
        scaffold.write("npu", tmp_path)
    assert caught.value.where == there
    assert before == files(tmp_path)


@pytest.mark.parametrize(
    ("kind", "reason"), [("missing", "No such file or directory"), ("file", "Not a directory")]
)
def test_nowhere_to_write(tmp_path, kind, reason):
    """One plain error says where, and why not."""
    into = tmp_path / "into"
    if kind == "file":
        into.touch()
    with pytest.raises(OptionError, match="the plugin cannot be written") as caught:
        scaffold.write("npu", into)
    assert (caught.value.where, caught.value.got) == (into, reason)


@pytest.mark.parametrize("method", ["mkdir", "write_text", "rename"])
def test_nothing_is_half_written(tmp_path, monkeypatch, method):
    """No permission, or a full disk, at any moment: the folder is as it was."""
    calls = iter(range(100))
    done = getattr(Path, method)

    def failing(path: Path, *args: object, **how: object) -> object:
        if next(calls) == (0 if method == "rename" else 2):
            raise PermissionError(13, "Permission denied")
        return done(path, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, method, failing)
        with pytest.raises(OptionError, match="the plugin cannot be written") as caught:
            scaffold.write("npu", tmp_path)
    assert caught.value.got == "Permission denied"
    assert files(tmp_path) == []


@pytest.mark.isolation
@pytest.mark.timeout(900)
def test_installed_it_passes(tmp_path):
    """With core and kit in a fresh environment, as its README says."""
    for part in ("core", "plugins"):  # copies: a build leaves files behind
        shutil.copytree(ROOT / part, tmp_path / part, ignore=LEFTOVERS)
    plugin = scaffold.write("my_npu", tmp_path)
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"

    def run(program: str, *words: object) -> str:
        command = [programs / program, *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("python", "-m", "pip", "install", "-q", tmp_path / "core", tmp_path / "plugins", plugin)
    assert "my_npu:0 (simulated)" in run("umbel", "devices")
    assert "2 passed" in run("pytest", plugin)
    again = run("umbel-kit", "new", "other", "--into", tmp_path)  # the installed template
    assert "plugin-other is a plugin" in again
    assert [f.replace("other", "my_npu") for f in files(tmp_path / "plugin-other")] == [
        f
        for f in files(plugin)
        if "egg-info" not in f and "cache" not in f and "build" not in f
    ]

"""The native engine among others: `auto` takes it where it works, and the host elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "core/tests/data/oracles/stories260K.gguf"
LIBRARY = "libumbel_numa.so"
RUN = ("run", str(MODEL), "Once upon a time", "-n", "4", "--temp", "0")
SAID = "plugin 'numa' cannot be used: devices(): the native library"

Broken = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["missing", "damaged", "of another build"])
def broken(request, site, tmp_path) -> Broken:
    """The command `umbel`, where the library of the engine is not as it should be."""
    import umbel_numa

    package = Path(umbel_numa.__file__).parent
    shutil.copytree(package, site.folder / "umbel_numa", ignore=shutil.ignore_patterns("*.so"))
    library = site.folder / "umbel_numa" / LIBRARY
    if request.param == "damaged":
        library.write_bytes((package / LIBRARY).read_bytes()[:5000])
    elif request.param == "of another build":
        (tmp_path / "empty.c").write_text("int un_nothing;\n")
        compiler = ("cc", "-shared", "-fPIC", "-o", str(library))
        subprocess.run([*compiler, str(tmp_path / "empty.c")], check=True)

    def umbel(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = f"import sys; from umbel.cli import main; sys.exit(main({list(arguments)!r}))"
        return site.run(code, UMBEL_PLUGINS="numa")

    return umbel


@pytest.mark.parametrize(("plugins", "device"), [("numa", "numa:0"), ("", "host:0")])
def test_what_auto_takes(site, plugins, device):
    """The engine where it is installed, else the host."""
    code = "from umbel import plugins; print(plugins.get().find().name)"
    assert site.run(code, UMBEL_PLUGINS=plugins).stdout == f"{device}\n"


def test_a_broken_library_is_one_line(broken):
    """In the list of plugins, which is all there is to see of it."""
    done = broken("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = re.findall(r"^numa .*$", done.stdout, re.M)
    assert re.search(r"FAILED .* devices\(\): the native library (cannot be|is of ano)", line)


def test_the_host_runs_where_the_library_is_broken(broken):
    """`auto` says so in a line; who named the engine is told why not, and what to do."""
    done = broken(*RUN)
    assert done.returncode == 0
    note, figures = done.stderr.splitlines()
    assert note.startswith("umbel: note: the plugin 'numa' is not used: devices(): the native ")
    assert figures.startswith("umbel: host:0: ")
    done = broken(*RUN, "--device", "numa")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"umbel: error: the {SAID}")
    assert "Traceback" not in done.stderr


@pytest.mark.isolation
def test_the_command_of_the_readme(tmp_path):
    """It installs the core, the engine and the demo model, and the engine writes an answer."""
    demo = (sys.executable, "-m", "nox", "--envdir", str(tmp_path), "-s", "demo")
    assert ".venv/bin/nox -s demo " in (ROOT / "README.md").read_text("utf-8")
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(demo, cwd=ROOT, text=True, timeout=280, check=False, **out)
    assert done.returncode == 0, done.stdout
    figures = r"^umbel: numa:0: prompt \d+ tokens .* answer \d\d+ tokens"
    assert re.search(figures, done.stdout, re.M), done.stdout

"""The core in a fresh environment, installed as a user does it, with nothing beside it."""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.isolation

CORE = Path(__file__).parents[2] / "core"
LIMIT = 0.120  # seconds for `import umbel`, beyond NumPy's own import
IMPORT = """
import time
import numpy
start = time.perf_counter()
import umbel
print(time.perf_counter() - start)
"""
LEFTOVERS = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".venv")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with `pip install ./core`; the folder of its programs."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copytree(CORE, folder / "core", ignore=LEFTOVERS)  # a build leaves files behind
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "-q", str(folder / "core")]
    subprocess.run(pip, check=True, timeout=280)
    return programs


def run(environment: Path, program: str, *arguments: str) -> str:
    """What a program of the environment says, run from a folder without a source tree."""
    command = [str(environment / program), *arguments]
    done = subprocess.run(
        command, cwd=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_the_command_tells_its_version(environment):
    """The installed program runs, and agrees with the package."""
    version = run(environment, "python", "-c", "import umbel; print(umbel.__version__)")
    assert run(environment, "umbel", "--version").split()[-1] == version.strip()


def test_there_is_the_host_and_nothing_else(environment):
    """The core brings one backend, which needs no plugin."""
    code = "from umbel import plugins; print([s.name for s, *_ in plugins.get().describe()])"
    assert run(environment, "python", "-W", "error", "-c", code) == "['host']\n"


def test_importing_umbel_is_fast(environment):
    """A command line should answer at once: under 120 ms beyond NumPy's own import."""
    assert min(float(run(environment, "python", "-c", IMPORT)) for _ in range(5)) < LIMIT


def test_importing_umbel_loads_no_vendor_and_no_test_package(environment):
    """What costs time is imported where it is used."""
    code = "import sys, umbel; print(*sys.modules)"
    loaded = set(run(environment, "python", "-c", code).split())
    assert loaded.isdisjoint({"gguf", "jinja2", "umbel.host", "pytest"})

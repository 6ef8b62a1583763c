"""What the tests of the kit share: the host, plugins, and the suite in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from umbel import plugins
from umbel.plan import Target

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def host() -> Target:
    """The host, opened anew: another test may have closed it."""
    found = plugins.Plugins(only="")
    return found.open(found.find("host"))


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str, str], Path]:
    """install(name, source): a plugin as if it were installed, for a path of Python's."""
    folder = tmp_path / "site"

    def written(name: str, source: str) -> Path:
        told = folder / f"{name}-1.0.dist-info"
        told.mkdir(parents=True)
        (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (told / "entry_points.txt").write_text(f"[umbel]\n{name} = {name}_plugin\n")
        (folder / f"{name}_plugin.py").write_text(source)
        return folder

    return written


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(*arguments, path=folder): Python in a folder of its own, with more to import."""

    def ran(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        more = {} if path is None else {"PYTHONPATH": str(path)}
        command = [sys.executable, *arguments]
        environ = {**os.environ, "COLUMNS": "200", **more}
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )

    return ran


@pytest.fixture
def suite(run: Run) -> Run:
    """suite(*options, path=folder): the conformance suite."""

    def ran(*options: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        start = ("-m", "pytest", "--pyargs", "umbel_kit.conformance", "-p", "no:cacheprovider")
        return run(*start, "-q", "-rf", *options, path=path)

    return ran

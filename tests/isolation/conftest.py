"""A folder of installed distributions, written by hand, and a Python that sees it.

A distribution is a `.dist-info` folder beside its modules; writing one takes no time,
installing one takes seconds. What needs a real installation is marked `isolation`: it runs in
the session of that name, and is left out elsewhere, unless `-m` asks for it. The distributions
here are called `eng-...`, so that others may be installed where the tests run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

BACKEND = """
from umbel.hookspecs import Device, DeviceInfo, hookimpl

UMBEL_API = 1


class Memory:
    alignment, max_size, is_host, separate, in_place = 64, 2**40, False, False, False
    alloc_size = readable_by = accepts = allocate = store = lambda *args: None


@hookimpl
def devices():
    return [Device("{name}:0", "a test device", priority={priority})]


@hookimpl
def open(device):
    return DeviceInfo()


@hookimpl
def buffer_type():
    return Memory()


@hookimpl
def op_supported():
    return None


@hookimpl
def graph_compute(device, graph):
    pass
"""


@attrs.frozen
class Site:
    """A folder on the module path."""

    folder: Path

    def add(
        self,
        distribution: str,
        entries: str | bytes,
        module: str = "",
        text: str = "",
        metadata: bool = True,
    ) -> None:
        """Installs version 1.0 of a distribution: its entry points, and one module."""
        info = self.folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        if metadata:
            about = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
            (info / "METADATA").write_text(about)
        content = entries if isinstance(entries, bytes) else entries.encode()
        (info / "entry_points.txt").write_bytes(b"[umbel]\n" + content + b"\n")
        if module:
            (self.folder / f"{module}.py").write_text(text)

    def add_plugin(self, name: str, text: str, priority: int = 1) -> None:
        """Installs the distribution `eng-NAME` with the backend NAME in a module `eng_NAME`."""
        text = text.replace("{name}", name).replace("{priority}", str(priority))
        self.add(f"eng-{name}", f"{name} = eng_{name}", f"eng_{name}", text)

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """What a fresh Python says that finds this folder's distributions."""
        kept = {k: v for k, v in os.environ.items() if k not in ("UMBEL_PLUGINS", "PYTHONPATH")}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=kept | environment | {"PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """For tests that ask one process about many plugins."""
    return Site(tmp_path_factory.mktemp("shared") / "site")


@pytest.fixture(scope="session")
def backend() -> str:
    """The text of a plugin that works."""
    return BACKEND


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "isolation: installs into a fresh environment, with pip")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("isolation")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]

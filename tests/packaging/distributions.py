"""The distributions of the project, and their wheels and sdists. A new one joins the list here.

`python tests/packaging/distributions.py DIST` makes them all in the folder DIST.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LEFTOVERS = ("build", "dist", "*.egg-info", "__pycache__", "*.so", ".*")  # of earlier builds
BESIDE = {"tests", "examples", "simulator"}  # `src`: no part of the distribution


class Distribution(NamedTuple):
    """One folder with a pyproject.toml."""

    folder: str
    name: str
    module: str
    data: tuple[str, ...] = ()  # files of the wheel that are no code: the easiest to lose
    shipped: bool = True  # False: an example
    devices: tuple[str, ...] = ()  # that it brings
    native: str = ""  # the folder of the sources of its library, which the wheel has instead

    @property
    def stem(self) -> str:
        """How the names of its archives begin."""
        return re.sub(r"[-_.]+", "_", self.name).lower()

    def wheels(self, dist: Path) -> list[Path]:
        """One, or one for each platform."""
        return sorted(dist.glob(f"{self.stem}-*.whl"))

    def sdists(self, dist: Path) -> list[Path]:
        return sorted(dist.glob(f"{self.stem}-*.tar.gz"))


DISTRIBUTIONS = (
    Distribution(
        "core", "umbel-core", "umbel", ("umbel/py.typed", "umbel/text/pretokenizers.txt")
    ),
    Distribution(
        "plugins",
        "umbel-plugin-kit",
        "umbel_kit",
        (
            "umbel_kit/py.typed",
            "umbel_kit/template/README.md",
            "umbel_kit/template/pyproject.toml",
            "umbel_kit/template/src/umbel_newname/__init__.py",
            "umbel_kit/template/tests/test_newname.py",
        ),
    ),
    Distribution(
        "plugin-numa",
        "umbel-plugin-numa",
        "umbel_numa",
        ("umbel_numa/py.typed", "umbel_numa/libumbel_numa.so"),
        devices=("numa:0",),
        native="umbel_numa/native",
    ),
    Distribution("plugin-cann", "umbel-plugin-cann", "umbel_cann", ("umbel_cann/py.typed",)),
    Distribution(
        "plugin-ane",
        "umbel-plugin-ane",
        "umbel_ane",
        ("umbel_ane/py.typed", "umbel_ane/profiles/orion-m4-macos15.toml"),
    ),
    Distribution(
        "plugins/examples/toy-accelerator",
        "umbel-example-toy",
        "umbel_toy",
        shipped=False,
        devices=("toy:0",),
    ),
    Distribution(
        "plugins/examples/extra-operation",
        "umbel-example-relu-sqr",
        "umbel_relu_sqr",
        shipped=False,
    ),
)


def build(dist: Path) -> None:
    """Makes every sdist, and from it the wheel.

    They are made from copies: what earlier builds left beside the sources gets into an sdist
    otherwise, and so do those of the tests that setuptools happens to find.
    """
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for distribution in DISTRIBUTIONS:
            for old in (*distribution.wheels(dist), *distribution.sdists(dist)):
                old.unlink()
            source, copy = ROOT / distribution.folder, Path(scratch, distribution.name)
            shutil.copytree(source, copy, ignore=_ignored(source))
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)]
            done = subprocess.run([*command, str(copy)], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{distribution.folder} cannot be built\n{done.stdout}{done.stderr}")


def _ignored(source: Path) -> Callable[[str, list[str]], set[str]]:
    """Leftovers everywhere, and beside `src` what is not part of the distribution."""
    leftovers = shutil.ignore_patterns(*LEFTOVERS)

    def ignore(folder: str, names: list[str]) -> set[str]:
        own = BESIDE if Path(folder) == source else set()
        return leftovers(folder, names) | own

    return ignore


if __name__ == "__main__":
    build(Path(sys.argv[1]))

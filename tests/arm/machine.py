"""An aarch64 Linux in a folder, whose programs run under qemu-user: no root, no container.

`python machine.py FOLDER WHEEL ...` makes it: Debian's Python for arm64 and what it needs (apt
downloads that as for another machine, with lists of its own), then our wheels and what they
need, by pip. What is there already stays. `--check` only says what cannot be done here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

QEMU = ("qemu-aarch64-static", "qemu-aarch64")
COMPILER = "aarch64-linux-gnu-gcc"
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
NEEDED = {  # programs, and the packages that have them
    QEMU: "qemu-user-static",
    (COMPILER,): "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    ("apt-get",): "apt",
    ("dpkg-deb",): "dpkg",
}
WITH = ("pytest-timeout",)  # what the suite needs beside our wheels and their dependencies


def missing() -> str | None:
    """None, or what this machine lacks and how it is installed."""
    lacks = [names for names in NEEDED if not _first(names)]
    packages = " ".join(NEEDED[names] for names in lacks)
    told = ", no ".join(names[0] for names in lacks)
    return f"there is no {told}; on Debian or Ubuntu: apt install {packages}" if lacks else None


def _first(names: tuple[str, ...]) -> str:
    return next((found for name in names if (found := shutil.which(name))), "")


def make(folder: Path, wheels: list[str]) -> None:
    """The machine, or what it lacks of it; our wheels anew."""
    root = folder / "root"
    if not root.exists():
        _download(folder / "apt")
        beside = folder / "root.part"
        shutil.rmtree(beside, ignore_errors=True)
        for package in sorted((folder / "apt/archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(beside)], check=True)
        beside.rename(root)
    _install(folder, wheels)


def _download(folder: Path) -> None:
    """The packages, by an apt that knows only of arm64 and writes only in the folder."""
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
        "Dir::Cache": folder,
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    without = ("--no-install-recommends", "--download-only")
    subprocess.run([*apt, "install", "-y", *without, *PACKAGES], check=True)


def _install(folder: Path, wheels: list[str]) -> None:
    """Into the folder `site`: what our wheels need at the first time, themselves always."""
    code = "import platform; print(platform.python_version(), platform.libc_ver()[1])"
    python, glibc = run(folder, "max", "-c", code).stdout.split()
    tags = [f"manylinux_2_{n}_aarch64" for n in range(int(glibc.split(".")[1]), 16, -1)]
    platforms = [
        word for tag in (*tags, "manylinux2014_aarch64") for word in ("--platform", tag)
    ]
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install"]
    what = ["--implementation", "cp", "--python-version", python, "--only-binary=:all:"]
    site = folder / "site"
    if not site.exists():
        beside = folder / "site.part"
        shutil.rmtree(beside, ignore_errors=True)
        where = ["--target", str(beside)]
        subprocess.run([*pip, *where, *platforms, *what, *wheels, *WITH], check=True)
        beside.rename(site)
    where = ["--target", str(site), "--upgrade", "--no-deps"]
    subprocess.run([*pip, *where, *platforms, *what, *wheels], check=True)


def run(
    folder: Path,
    cpu: str,
    *arguments: str,
    page: int = 4096,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments on such a processor (`max` has all that qemu knows), with
    pages of so many bytes."""
    (python,) = (folder / "root/usr/bin").glob("python3.*")
    how = ["-cpu", cpu, "-p", str(page), "-L", str(folder / "root")]
    command = [_first(QEMU), *how, str(python), *arguments]
    own = {"PYTHONPATH": str(folder / "site"), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(command, text=True, capture_output=True, env={**kept, **own})


if __name__ == "__main__":
    if told := missing():
        sys.exit(told)
    if sys.argv[1] != "--check":
        make(Path(sys.argv[1]).resolve(), sys.argv[2:])

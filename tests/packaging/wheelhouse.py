"""Gathers what a machine without a network needs: our wheels and those that they depend on.

`python tests/packaging/wheelhouse.py linux-aarch64 cp311` makes one archive in the folder dist,
with a README that has the line to install from it.

pip resolves for another platform, but asks the markers of dependencies (`python_version <
"3.11"`) about the Python that it runs in. So what the other machine would miss is looked up
here in the metadata, and fetched too.
"""

from __future__ import annotations

import argparse
import email
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OLDEST = 10  # Python 3.10


class Platform(NamedTuple):
    """What pip calls it, and what markers ask about."""

    tags: tuple[str, ...]
    system: str
    sys_platform: str
    machine: str


def _linux(machine: str, *more: str) -> Platform:
    """From glibc 2.28 on, with the wheels for any older one."""
    tags = tuple(f"manylinux_2_{minor}_{machine}" for minor in range(28, 16, -1))
    return Platform((*tags, f"manylinux2014_{machine}", *more), "Linux", "linux", machine)


PLATFORMS = {
    "linux-x86_64": _linux("x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
    "linux-aarch64": _linux("aarch64"),
    "macos-arm64": Platform(("macosx_11_0_arm64",), "Darwin", "darwin", "arm64"),
}
README = """# Umbel {version} for {platform}, Python {python}

Everything that `pip` needs on a machine without a network. In this folder:

    python{python} -m pip install --no-index --find-links . umbel-core

`umbel --version` then says {version}. The same line installs what else of Umbel is here:
{others}.

{wheels}
"""


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    dist = distributions.ROOT / "dist"
    distributions.build(dist)
    try:
        archive = gather(args.platform, args.tag, dist)
    except subprocess.CalledProcessError as error:
        told = (error.stderr or "").strip() or f"pip failed with {error.returncode}"
        print(f"wheelhouse: error: there is no whole set of wheels\n{told}", file=sys.stderr)
        return 2
    print(f"{archive} ({archive.stat().st_size / 1e6:.1f} MB)")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="wheelhouse", description=__doc__.splitlines()[0])
    text = f"where it will be installed: {', '.join(PLATFORMS)}"
    made.add_argument("platform", metavar="PLATFORM", choices=PLATFORMS, help=text)
    made.add_argument("tag", metavar="TAG", type=_tag, help="its Python: cp311 is CPython 3.11")
    return made


def _tag(text: str) -> str:
    found = re.fullmatch(r"cp3(\d{1,2})", text)
    if found is None or int(found[1]) < OLDEST:
        msg = f"{text!r} is no CPython that Umbel runs on: cp3{OLDEST}, cp3{OLDEST + 1}, ..."
        raise argparse.ArgumentTypeError(msg)
    return text


def gather(platform: str, tag: str, dist: Path) -> Path:
    """The archive, from the wheels in `dist`."""
    name = f"umbel-wheelhouse-{platform}-{tag}"
    ours = _ours(platform, dist)
    wheels, target = [str(wheel) for wheel in ours.values()], _target(platform, tag, ours)
    with tempfile.TemporaryDirectory(dir=dist, prefix=".wheelhouse-") as scratch:
        house = Path(scratch, name)
        wanted, missing = wheels, [""]
        while missing:
            _pip("download", "--dest", str(house), *target, *wanted)
            missing = _missing(house, PLATFORMS[platform], _python(tag))
            wanted = [*wanted, *missing]
        alone = ("--no-index", "--find-links", str(house), "--dest", f"{scratch}/again")
        _pip("download", *alone, *target, *ours)  # it finds all that it wants there
        _write_readme(house, platform, tag, list(ours))
        made = Path(scratch, f"{name}.tar.gz")
        with tarfile.open(made, "w:gz") as archive:
            archive.add(house, name)
        return made.replace(dist / made.name)


def _ours(platform: str, dist: Path) -> dict[str, Path]:
    """The wheels of our distributions; one that has none for the platform is left out."""
    tags, machine = PLATFORMS[platform].tags, PLATFORMS[platform].machine
    found = {}
    for made in distributions.DISTRIBUTIONS:
        for wheel in made.wheels(dist) if made.shipped else ():
            tag = _tag_of(wheel)
            if tag in ("any", *tags) or re.fullmatch(rf"manylinux_2_\d+_{machine}", tag):
                found[made.name] = wheel
        if made.shipped and made.name not in found:
            told = "left out: it was not built for that (CC names a compiler that does)"
            print(f"{made.name} for {platform} is {told}", file=sys.stderr)
    return found


def _tag_of(wheel: Path) -> str:
    return wheel.stem.rpartition("-")[2]


def _python(tag: str) -> str:
    return f"3.{tag.removeprefix('cp3')}"


def _target(platform: str, tag: str, ours: dict[str, Path]) -> list[str]:
    """For pip: not the machine that it runs on. Ours may need a newer system than others."""
    every = [*PLATFORMS[platform].tags, *(_tag_of(w) for w in ours.values())]
    tags = [word for each in every if each != "any" for word in ("--platform", each)]
    python = ["--implementation", "cp", "--python-version", _python(tag)]
    return ["--only-binary=:all:", *tags, *python]


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *words]
    subprocess.run(command, check=True, capture_output=True, text=True)


def _missing(house: Path, platform: Platform, python: str) -> list[str]:
    """What the wheels need on the other machine and is not among them."""
    environment = {
        "os_name": "posix",
        "sys_platform": platform.sys_platform,
        "platform_system": platform.system,
        "platform_machine": platform.machine,
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    needs = {_name(wheel): _needs(wheel) for wheel in house.glob("*.whl")}
    extras: dict[str, set[str]] = {name: {""} for name in needs}
    missing = {}
    for _ in needs:  # extras may ask for extras: as often as there are wheels is enough
        for name, requirements in needs.items():
            for need in requirements:
                applies = need.marker is None or any(
                    need.marker.evaluate(environment | {"extra": extra})
                    for extra in extras[name]
                )
                other = canonicalize_name(need.name)
                if applies and other in extras:
                    extras[other] |= need.extras
                elif applies:
                    missing[other] = f"{need.name}{need.specifier}"
    return sorted(missing.values())


def _name(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])


def _needs(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        says = email.message_from_bytes(archive.read(file))
    return [Requirement(text) for text in says.get_all("Requires-Dist", [])]


def _write_readme(house: Path, platform: str, tag: str, ours: list[str]) -> None:
    wheels = sorted(house.glob("*.whl"))
    version = next(w.name.split("-")[1] for w in wheels if w.name.startswith("umbel_core-"))
    others = [name for name in ours if name != "umbel-core"]
    text = README.format(
        version=version,
        platform=platform,
        python=_python(tag),
        others=", ".join(f"`{name}`" for name in others),
        wheels="\n".join(f"* {w.name} ({w.stat().st_size / 1e6:.1f} MB)" for w in wheels),
    )
    (house / "README.md").write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())

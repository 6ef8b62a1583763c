"""Builds the three libraries: plain C, without anything of Python in them.

A library needs those before it and finds them beside itself. CC, CFLAGS and LDFLAGS are read as
usual: `CFLAGS=-fsanitize=thread` makes a simulator that watches itself.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/umbel_cann_simulator/native")
FOLDER = "umbel_cann_simulator.toolkit.lib64"
APART = {"libnnopbase": "nnop*.c", "libopapi": "op*.c"}  # libascendcl has the other files
LIBRARIES = ("libascendcl", *APART)
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O3", "-g1", "-fPIC", "-fvisibility=hidden")
FLAGS += ("-ffp-contract=off", "-Wall", "-Wextra", "-Werror=implicit-function-declaration")
# a symbol that is taken away (see `without`) is missed by other libraries only
LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-rpath,$ORIGIN")


def sources_of(library: str) -> list[Path]:
    apart = {name: sorted(NATIVE.glob(pattern)) for name, pattern in APART.items()}
    rest = set(NATIVE.glob("*.c")) - {path for paths in apart.values() for path in paths}
    return apart.get(library, sorted(rest))


def flags_of(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


class BuildLibrary(build_ext):
    """Compiles what has changed, and links."""

    def build_extension(self, ext: Extension) -> None:
        library = ext.name.rpartition(".")[2]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = [self.compile(source) for source in sources_of(library)]
        others = [f"-l{name[3:]}" for name in LIBRARIES[: LIBRARIES.index(library)]]
        link = [*LINK, f"-Wl,-soname,{target.name}", f"-L{target.parent}", "-Wl,--no-as-needed"]
        link += [*others, "-Wl,--as-needed", "-pthread", "-lm", "-ldl", *flags_of("LDFLAGS")]
        self.run_compiler(*flags_of("CFLAGS"), *objects, *link, "-o", str(target))

    def copy_extensions_to_source(self) -> None:
        """Of an editable installation, whose folder of libraries is not there at first."""
        (NATIVE.parent / "toolkit/lib64").mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def compile(self, source: Path) -> str:
        target = Path(self.build_temp) / f"{source.stem}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        newest = max(p.stat().st_mtime for p in (source, *NATIVE.glob("*.h"), Path(__file__)))
        if not target.exists() or target.stat().st_mtime < newest:
            flags = (*FLAGS, *flags_of("CFLAGS"))
            self.run_compiler(*flags, "-c", str(source), "-o", str(target))
        return str(target)

    def run_compiler(self, *arguments: str) -> None:
        compiler = flags_of("CC") or [next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")]
        if subprocess.run([*compiler, *arguments]).returncode:
            msg = f"this failed: {shlex.join([*compiler, *arguments])}"
            raise SystemExit(msg)

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_source_files(self) -> list[str]:
        return sorted(map(str, NATIVE.glob("*.[ch]")))


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Native(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=Native,
    ext_modules=[Extension(f"{FOLDER}.{name}", []) for name in LIBRARIES if sources_of(name)],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)

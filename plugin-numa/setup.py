"""Builds the native library: plain C, one shared library without anything of Python in it.

The files of `KERNELS` are compiled once for each instruction set, the others once. setuptools'
own extensions would be tied to one version of Python and have one set of flags for all sources.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/umbel_numa/native")
ONCE = ("run.c", "pool.c", "barrier.c", "pages.c", "cpu.c", "tables.c")
PLAIN = ("-std=c11", "-O3", "-g1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
PLAIN += ("-Wall", "-Wextra", "-Wno-unused-parameter", "-D_GNU_SOURCE", "-fno-math-errno")
PLAIN += ("-Wno-missing-field-initializers",)
X86 = {
    "scalar": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c", "-DUN_AVX2"),
    "avxvnni": ("-mavx2", "-mfma", "-mf16c", "-mavxvnni", "-DUN_AVX2", "-DUN_AVXVNNI"),
    "avx512": (
        *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        *("-mavx512vnni", "-mprefer-vector-width=512", "-DUN_AVX512"),
    ),
}
ARM = {
    "scalar": (),
    "dotprod": ("-march=armv8.2-a+dotprod", "-DUN_NEON"),
    "i8mm": ("-march=armv8.2-a+dotprod+i8mm", "-DUN_NEON", "-DUN_I8MM"),
}
VARIANTS = {"x86_64": X86, "aarch64": ARM}


def machine() -> str:
    """What is compiled for: this machine, unless the compiler's flags say otherwise."""
    name = os.environ.get("UMBEL_NUMA_MACHINE") or platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


class Compiler:
    """The C compiler of the environment (CC, CFLAGS, LDFLAGS as usual)."""

    def __init__(self) -> None:
        self.command = shlex.split(os.environ.get("CC") or "cc")
        self.flags = shlex.split(os.environ.get("CFLAGS", ""))
        self.link_flags = shlex.split(os.environ.get("LDFLAGS", ""))

    def run(self, *arguments: str) -> None:
        command = [*self.command, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            message = f"a C compiler is needed ({shlex.join(self.command)}): {error.strerror}"
            raise SystemExit(message) from error
        if done.stderr:
            print(done.stderr, file=sys.stderr)
        if done.returncode:
            raise SystemExit(f"this failed: {shlex.join(command)}\n{done.stderr}")

    def compile(self, source: Path, target: Path, *flags: str) -> Path:
        newest = max(p.stat().st_mtime for p in (source, *NATIVE.glob("*.h"), Path(__file__)))
        if not target.exists() or target.stat().st_mtime < newest:
            self.run(*PLAIN, *flags, *self.flags, "-c", str(source), "-o", str(target))
        return target


class BuildLibrary(build_ext):
    """Compiles everything and links it; a failure is an error, never a package without it."""

    def build_extension(self, ext: Extension) -> None:
        folder, compiler = Path(self.build_temp) / machine(), Compiler()
        folder.mkdir(parents=True, exist_ok=True)
        jobs = []
        for source in sorted(NATIVE.glob("*.c")):
            variants = (
                {"once": ()} if source.name in ONCE else VARIANTS.get(machine(), {"scalar": ()})
            )
            for name, flags in variants.items():
                define = () if name == "once" else (f"-DUN_VARIANT={name}",)
                jobs.append((source, folder / f"{source.stem}-{name}.o", (*flags, *define)))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(
                pool.map(lambda job: compiler.compile(job[0], job[1], *job[2]), jobs)
            )
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        link = ("-shared", *map(str, objects), "-o", str(target), "-pthread", "-lm")
        compiler.run(*compiler.flags, *link, *compiler.link_flags)

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()[2]
        return "py3", "none", tag


class Native(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=Native,
    ext_modules=[Extension("umbel_numa.libumbel_numa", [])],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)

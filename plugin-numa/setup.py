"""Builds the native library: plain C, one shared library without anything of Python in it.

The files in `native/` are compiled once for each instruction set, those of `ONCE` once. Sets in
`SHARED` add to another what only `PRODUCTS` use, and take the rest from it.
setuptools' own extensions would be tied to one version of Python and have one set of flags for
all sources. CC, CFLAGS and LDFLAGS are read as usual; CC may be a compiler for another machine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/umbel_numa/native")
LIBRARY = "umbel_numa.libumbel_numa"
ONCE = ("run.c", "pool.c", "barrier.c", "pages.c", "cpu.c", "tables.c")
PLAIN = ("-std=c11", "-O3", "-g1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
PLAIN += ("-Wall", "-Wextra", "-Wno-unused-parameter", "-D_GNU_SOURCE", "-fno-math-errno")
PLAIN += ("-Wno-missing-field-initializers", "-Werror=implicit-function-declaration")
X86 = {
    "avx512": (
        *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        *("-mavx512vnni", "-mprefer-vector-width=512", "-DUN_AVX512"),
    ),
    "avxvnni": ("-mavx2", "-mfma", "-mf16c", "-mavxvnni", "-DUN_AVX2", "-DUN_AVXVNNI"),
    "avx2": ("-mavx2", "-mfma", "-mf16c", "-DUN_AVX2"),
    "scalar": ("-O2",),  # soon compiled; what needs speed is there for other sets
}
ARM = {
    "i8mm": ("-march=armv8.2-a+dotprod+i8mm", "-DUN_NEON", "-DUN_I8MM"),
    "dotprod": ("-march=armv8.2-a+dotprod", "-DUN_NEON"),
    "scalar": (),  # all that a Raspberry Pi 4 has
}
VARIANTS = {"x86_64": X86, "aarch64": ARM}  # the best first
SHARED = {"avxvnni": "avx2", "i8mm": "dotprod"}
PRODUCTS = ("legacy.c", "kquants.c", "codebook.c", "floats.c", "panels.c", "kernels.c")
NO_COMPILER = """umbel-plugin-numa is built by a C compiler, and there is none: {tried}.
Install one:  Debian, Ubuntu: apt install gcc libc6-dev;  Fedora, openEuler: dnf install gcc;
macOS: xcode-select --install.  Another one than the system's is named by CC."""


class Compiler:
    """The C compiler of the environment, and what it compiles for."""

    def __init__(self) -> None:
        named = os.environ.get("CC")
        default = next(filter(shutil.which, ("cc", "gcc", "clang")), "")
        self.command = shlex.split(named or default)
        if not self.command or not shutil.which(self.command[0]):
            msg = NO_COMPILER.format(tried=f"CC is {named!r}" if named else "no cc, gcc, clang")
            raise SystemExit(msg)
        self.flags = shlex.split(os.environ.get("CFLAGS", ""))
        self.link_flags = shlex.split(os.environ.get("LDFLAGS", ""))
        if "darwin" in self.target:
            self.flags.append(f"-mmacosx-version-min={'.'.join(self.macos)}")

    @cached_property
    def target(self) -> str:
        """As compilers name it: x86_64-linux-gnu, arm64-apple-darwin23.1.0."""
        return self.run(*self.flags, "-dumpmachine").strip()

    @cached_property
    def machine(self) -> str:
        name = self.target.partition("-")[0]
        return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)

    @cached_property
    def macos(self) -> tuple[str, str]:
        """The oldest version that the library is made for."""
        wanted = os.environ.get("MACOSX_DEPLOYMENT_TARGET", "11.0").split(".")
        return wanted[0], wanted[1] if len(wanted) > 1 else "0"

    @cached_property
    def variants(self) -> dict[str, tuple[str, ...]]:
        """Of this machine's sets of instructions those that the compiler knows, with flags."""
        found = {}
        for name, flags in VARIANTS.get(self.machine, {"scalar": ()}).items():
            command = [*self.command, *self.flags, *flags, "-E", "-x", "c", os.devnull]
            if subprocess.run(command, capture_output=True).returncode:
                print(f"this compiler is too old for the {name} kernels: they are left out")
            else:
                found[name] = flags
        return found

    def run(self, *arguments: str) -> str:
        command = [*self.command, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            msg = f"this failed: {shlex.join(command)}\n{done.stderr}"
            raise SystemExit(msg)
        if done.stderr:
            print(done.stderr, file=sys.stderr)
        return done.stdout

    def make(self, target: Path, *arguments: str) -> None:
        """Runs it for a file that is there whole or not at all."""
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            self.run(*arguments, "-o", str(beside))
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


class BuildLibrary(build_ext):
    """Compiles everything and links it; a failure is an error, never a package without it."""

    def build_extension(self, ext: Extension) -> None:
        compiler = Compiler()
        how = repr((compiler.command, compiler.flags, compiler.target))
        folder = Path(self.build_temp) / f"{compiler.machine}-{zlib.crc32(how.encode()):08x}"
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [
                pool.submit(self._compile, compiler, source, folder / f"{source.stem}-{name}.o")
                for source in sorted(NATIVE.glob("*.c"))
                for name in (("once",) if source.name in ONCE else compiler.variants)
                if name not in SHARED or source.name in PRODUCTS
            ]
            try:
                objects = [str(job.result()) for job in jobs]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-shared", *compiler.flags, *objects, "-pthread", "-lm", *compiler.link_flags]
        if "linux" in compiler.target:  # elsewhere a missing function is an error by itself
            flags.append("-Wl,-z,defs")
        compiler.make(target, *flags)

    def _compile(self, compiler: Compiler, source: Path, target: Path) -> Path:
        """The object file, unless nothing has changed since it was made."""
        name = target.stem.rpartition("-")[2]
        flags = (*compiler.variants.get(name, ()), f"-DUN_VARIANT={name}")
        flags += (f"-DUN_SHARED={SHARED.get(name, name)}",)
        if name == "once":
            flags = (f"-DUN_VARIANTS={' '.join(f'X({known})' for known in compiler.variants)}",)
        newest = max(p.stat().st_mtime for p in (source, *NATIVE.glob("*.h"), Path(__file__)))
        if not target.exists() or target.stat().st_mtime < newest:
            compiler.make(target, *PLAIN, *flags, *compiler.flags, "-c", str(source))
        return target

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_source_files(self) -> list[str]:
        return sorted(map(str, NATIVE.glob("*.[ch]")))


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on the platform that the library is for."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", self._platform() or super().get_tag()[2]

    def _platform(self) -> str | None:
        """None where Python's own name for this machine has to do."""
        compiler = Compiler()
        if "darwin" in compiler.target:
            machine = compiler.machine.replace("aarch64", "arm64")
            return f"macosx_{'_'.join(compiler.macos)}_{machine}"
        if "linux" not in compiler.target:
            return None
        library = Path(self.get_finalized_command("build_ext").get_ext_fullpath(LIBRARY))
        if not library.exists():  # editable: it is made later, for this machine
            return None
        versions = [int(n) for n in re.findall(rb"\0GLIBC_2\.(\d+)", library.read_bytes())]
        if versions:  # of glibc that it needs, and it needs no other library
            return f"manylinux_2_{max(17, *versions)}_{compiler.machine}"
        return f"linux_{compiler.machine}"


class Native(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=Native,
    ext_modules=[Extension(LIBRARY, [])],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)

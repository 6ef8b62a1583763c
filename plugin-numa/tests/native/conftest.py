"""Builds the runtime under the kernels by itself, and small C programs upon it."""

import ctypes
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src/umbel_numa/native"
RUNTIME = tuple(SOURCES / name for name in ("pool.c", "barrier.c", "pages.c"))
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread")

Build = Callable[..., Path]
Run = Callable[..., str]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """build(*sources, *flags): a program, made once for each set of arguments."""
    folder = tmp_path_factory.mktemp("native")
    made: dict[tuple[object, ...], Path] = {}

    def make(*arguments: object) -> Path:
        if arguments not in made:
            path = folder / f"program{len(made)}"
            compiler = shlex.split(os.environ.get("CC") or "cc")
            command = (*compiler, *FLAGS, "-O2", "-g", f"-I{SOURCES}", *map(str, arguments))
            subprocess.run([*command, "-o", str(path)], check=True)
            made[arguments] = path
        return made[arguments]

    return make


@pytest.fixture(scope="session")
def thread_sanitizer(build: Build, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The flag that finds data races."""
    flag = "-fsanitize=thread"
    probe = tmp_path_factory.mktemp("probe") / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    try:
        subprocess.run([build(probe, flag)], check=True)
    except subprocess.CalledProcessError:
        pytest.skip("there is no ThreadSanitizer here")
    return flag


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs a program; what it prints."""

    def start(program: Path, *arguments: object) -> str:
        command = [str(program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout

    return start


@pytest.fixture(scope="session")
def library(build: Build) -> ctypes.CDLL:
    """The runtime alone as a library."""
    flags = ("-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
    lib = ctypes.CDLL(str(build(*RUNTIME, *flags)), use_errno=True)
    lib.un_pool_new.restype = ctypes.c_void_p
    lib.un_pages_alloc.restype = ctypes.c_void_p
    lib.un_pages_alloc.argtypes = [ctypes.c_int64, ctypes.c_int]
    lib.un_pages_size.restype = ctypes.c_int64
    lib.un_barrier_time.restype = ctypes.c_double
    where = [ctypes.c_void_p, ctypes.c_int64]
    for name in ("free", "drop"):
        getattr(lib, f"un_pages_{name}").argtypes = where
    for name in ("bind", "move"):
        getattr(lib, f"un_pages_{name}").argtypes = [*where, ctypes.c_int]
    lib.un_pages_absent.argtypes, lib.un_pages_absent.restype = where, ctypes.c_int64
    lib.un_pages_where.argtypes = [*where, ctypes.POINTER(ctypes.c_int64), ctypes.c_int]
    return lib

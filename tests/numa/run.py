"""Boots machines with NUMA nodes and runs the tests of this folder inside: `nox -s numa`.

`python tests/numa/run.py --work FOLDER [--machine NAME ...] [-- PYTEST ARGUMENT ...]`
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import guest
from machines import MACHINES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VARIABLES = {
    "HOME": "/tmp",
    "USER": "root",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",  # its threads would be among those that are looked at
}


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that qemu ends too
    work = Path(args.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    places = map(Path, (sys.prefix, sys.base_prefix, *sys.path))
    folders = [ROOT, work, *(place for place in places if place.is_dir())]
    try:
        system = guest.fetched(work, folders)
        counting = _counting_library(work)
        run = partial(_run, system, counting, work, args.limit, args.pytest)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            try:
                codes = list(pool.map(run, args.machine or MACHINES))
            finally:
                system.stop()
    except guest.GuestError as error:
        print(f"numa: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return max(codes)


def _run(
    system: guest.System, counting: Path, work: Path, limit: float, more: list[str], name: str
) -> int:
    machine, start = MACHINES[name], time.monotonic()
    print(f"{name}: {len(machine.nodes)} nodes\n", end="", flush=True)  # one write
    variables = VARIABLES | {"UMBEL_MACHINE": name, "UMBEL_COUNTING": str(counting)}
    if search := os.environ.get("PYTHONPATH"):
        variables["PYTHONPATH"] = os.pathsep.join(
            map(os.path.abspath, search.split(os.pathsep))
        )
    tests = [str(HERE / test) for test in machine.tests]
    configuration = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT))
    command = [f"{key}={value}" for key, value in variables.items()]
    command += [sys.executable, "-m", "pytest", *configuration, *more, *tests]
    code = system.run(machine, command, work / name, limit)
    took = time.monotonic() - start
    print(f"{name}: {'failed' if code else 'passed'}, {took:.0f} s\n", end="", flush=True)
    return code


def _counting_library(work: Path) -> Path:
    """The threads and their barrier, built so that it counts what crosses nodes."""
    native, target = ROOT / "plugin-numa/src/umbel_numa/native", work / "counting.so"
    compiler = shlex.split(os.environ.get("CC") or "cc")
    flags = ("-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-D_GNU_SOURCE", "-DUN_COUNT")
    sources = (f"-I{native}", str(HERE / "counting.c"), str(native / "pages.c"))
    done = subprocess.run([*compiler, *flags, *sources, "-o", str(target)])
    if done.returncode:
        msg = "the counting barrier cannot be built"
        raise guest.GuestError(msg)
    return target


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="numa", description=__doc__.splitlines()[0])
    made.add_argument("--machine", action="append", choices=MACHINES, help="only this one")
    made.add_argument("--work", required=True, help="what is fetched and built stays here")
    made.add_argument("--limit", type=float, default=600, help="seconds of a machine at most")
    made.add_argument("pytest", nargs="*", help="for pytest, after --")
    return made


if __name__ == "__main__":
    sys.exit(main())

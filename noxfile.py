"""Every check, one session each. `nox` runs those that decide; `nox -l` lists all,
those of `tests/longer.py` too.

Those that decide run in three environments, each made and filled once for all of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests"))

import longer  # noqa: E402, F401 - its sessions are this file's, too
from environments import (  # noqa: E402
    ANE,
    BESIDE,
    CANN,
    CASES,
    CHIPS,
    KERNELS,
    NUMA,
    RELU_SQR,
    STRICT,
    TOY,
    USUAL,
    conformance,
    environment,
)

nox.needs_version = ">=2024.4"
nox.options.sessions = ["lint", "types", "core", "real", "docs", "native", "cann", "ane", "kit"]
nox.options.sessions += ["isolation"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Style, import layers, the size of the engine."""
    run = environment(session, "checks")
    run("ruff", "check", ".")
    run("ruff", "format", "--check", ".")
    sources = ("plugin-numa/src", f"{CANN}/src", f"{ANE}/src")
    run("lint-imports", PYTHONPATH=os.pathsep.join(sources))
    run("python", "tests/budget.py")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Types of all distributions, strict."""
    sources = ("core/src", "plugins/src/umbel_kit", "plugin-numa/src")
    sources += (f"{CANN}/src", f"{CANN}/simulator/src", f"{ANE}/src")
    examples = (f"{TOY}/src", f"{RELU_SQR}/src")
    environment(session, "checks")("mypy", *sources, *examples)


@nox.session(venv_backend="none")
def core(session: nox.Session) -> None:
    """The unit tests of the core, and of the benchmark that it is measured with.

    Those that hold time against a clock run alone.
    """
    run = environment(session, "checks")
    tests = ("pytest", "core/tests", "tests/bench")
    run(*tests, *BESIDE, "-m", f"{USUAL} and not clock", *session.posargs)
    run(*tests, "-m", f"{USUAL} and clock")


@nox.session(venv_backend="none")
def real(session: nox.Session) -> None:
    """The demo model against an independent implementation's figures."""
    run = environment(session, "checks")
    run("pytest", "core/tests", "-m", "demo", *session.posargs)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """The documentation builds, and every command in it runs."""
    run = environment(session, "checks")
    folder = Path(session.create_tmp()).absolute()
    run("mkdocs", "build", "--strict", "--site-dir", str(folder / "site"))
    wheels = str(folder / "wheels")  # of what pages install beside the core
    make = ("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels)
    run(*make, NUMA, CANN, f"{CANN}/simulator", ANE)
    run("pytest", "tests/docs", *BESIDE, *session.posargs, UMBEL_WHEELS=wheels)
    _coverage(session, "--check")


@nox.session(venv_backend="none")
def native(session: nox.Session) -> None:
    """The tests of the native engine; the conformance suite with each set of its kernels."""
    run = environment(session, "plugins")
    run("pytest", "plugin-numa/tests", *BESIDE, *session.posargs)
    for kernels in str(run("python", "-c", KERNELS, silent=True)).split():
        conformance(run, "numa", UMBEL_NUMA_KERNELS=kernels)


@nox.session(venv_backend="none")
def cann(session: nox.Session) -> None:
    """The backend for Ascend NPUs and its simulator; the conformance suite on the smallest and
    the largest chip (`cann-full` has all)."""
    run = environment(session, "cann")
    tests = ("pytest", f"{CANN}/tests", f"{CANN}/simulator/tests")
    run(*tests, *BESIDE, *session.posargs)
    kept = str(Path(session.create_tmp()).absolute())  # what chips can do, as it was tried out
    for chip in (CHIPS[0], CHIPS[-1]):
        conformance(run, "cann", UMBEL_CANN_SIMULATOR=chip, XDG_CACHE_HOME=kept)


@nox.session(venv_backend="none")
def ane(session: nox.Session) -> None:
    """The backend for the Apple Neural Engine; the conformance suite by the strict rules."""
    run = environment(session, "ane")
    run("pytest", f"{ANE}/tests", *BESIDE, "-m", USUAL, *session.posargs)
    kept = str(Path(session.create_tmp()).absolute())  # what was compiled
    conformance(run, "ane", UMBEL_ANE_SIMULATOR=STRICT, XDG_CACHE_HOME=kept)


@nox.session(venv_backend="none")
def kit(session: nox.Session) -> None:
    """The tests of kit and examples; the conformance suite on the host and on the toy."""
    run = environment(session, "plugins")
    run("pytest", "plugins/tests", "plugins/examples", *BESIDE, *session.posargs)
    for device in ("host", "toy"):
        conformance(run, device)


@nox.session(venv_backend="none")
def isolation(session: nox.Session) -> None:
    """What crosses distributions: broken plugins, the core alone, the README's command."""
    run = environment(session, "plugins")
    folders = ("tests/isolation", "plugins/tests/test_scaffold.py")
    by_file = ("-n", "auto", "--dist", "loadfile")  # a file's environment is made once
    run("pytest", *folders, *by_file, "-m", "not demo", *session.posargs)


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """Renews the table in docs/coverage.md."""
    _coverage(session, "--write")


def _coverage(session: nox.Session, how: str) -> None:
    """The page of what runs where, on the host, the native engine and the toy accelerator."""
    devices = (word for name in ("host", "numa", "toy") for word in ("--device", name))
    session.log("`nox -s coverage` renews docs/coverage.md")
    command = ("umbel-kit", "coverage", *devices, "--cases", CASES, how, "docs/coverage.md")
    environment(session, "plugins")(*command)

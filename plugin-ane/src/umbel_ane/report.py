"""`umbel ane report`: a text about one Mac's Neural Engine, to be sent to us.

What is known of these chips are other people's reports. This one says what a machine is,
whether the private API is the one we know, and what some small programs do there; at the end,
which profile says the same. It compiles at most `bench.MOST` programs, and names no user and no
serial number.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from umbel.errors import UmbelError

from umbel_ane import profile
from umbel_ane.drivers import Driver, choose
from umbel_ane.drivers.objc.driver import load
from umbel_ane.drivers.objc.native import Rubicon
from umbel_ane.drivers.objc.preflight import Checked, preflight
from umbel_ane.experiments import compiles, runs
from umbel_ane.experiments.bench import MOST, Bench, Found

PLACE = re.compile(r"(?:file:)?(?<![\w.@])/+(?:[^/\s'\"`|]+/)+[^\s'\"`|]*")
PACKAGES = ("umbel-core", "umbel-plugin-ane", "rubicon-objc", "coremltools", "numpy")


def report(kind: str = "auto") -> Iterator[str]:
    """Line by line as it is found, so that a crash of the system leaves what came before; what
    errors say of folders and users is left out."""
    return map(_unnamed, _report(kind))


def _unnamed(line: str) -> str:
    """Without a path or the user's name, whoever put them there."""
    line = PLACE.sub("PATH", line)
    user = getpass.getuser() if os.environ.get("USER") or os.environ.get("LOGNAME") else ""
    return line.replace(user, "USER") if len(user) > 3 else line


def _report(kind: str) -> Iterator[str]:
    yield "# Neural Engine report"
    yield ""
    yield from _machine()
    if not choose.simulated() and not kind.startswith("simulator"):
        yield from _methods()
    try:
        driver = choose.driver(kind)
    except UmbelError as error:
        yield from ("", "No experiments: the Neural Engine cannot be used.", "")
        yield from (f"    {line}" for line in str(error).splitlines())
        return
    try:
        yield from experiments(driver)
    finally:
        driver.close()


def _machine() -> Iterator[str]:
    yield "| machine | |"
    yield "|---|---|"
    system = f"macOS {choose.macos()}" if choose.macos() else platform.system()
    yield _row("system", f"{system}, {platform.machine()}")
    if chip := choose.architecture():
        yield _row("engine, by the chip's name", chip)
    yield _row("Python", platform.python_version())
    for name in PACKAGES:
        try:
            yield _row(name, version(name))
        except PackageNotFoundError:
            yield _row(name, "not installed")


def _methods() -> Iterator[str]:
    """The private methods as this system has them."""
    yield from ("", "## Methods", "")
    try:
        native = Rubicon()
        load(native)
        checked: Sequence[Checked] = preflight(native)
    except UmbelError as error:
        yield f"Not looked at: {error.what}."
        return
    yield "| method | expected | here | |"
    yield "|---|---|---|---|"
    for one in checked:
        here = one.got or "missing"
        fits = "ok" if one.there else "not needed" if one.fits else "**differs**"
        yield _row(f"`{one.method}`", f"`{one.method.encoding}`", f"`{here}`", fits)


def experiments(driver: Driver) -> Iterator[str]:
    """What small programs do on a driver, and which profile agrees."""
    chip, simulated = driver.info(), " (simulated)" if driver.simulated else ""
    yield from ("", "## Experiments", "")
    yield f"Driver: {driver.name}{simulated}; {chip.architecture or 'unknown chip'}, "
    yield f"{chip.cores} cores, {chip.engines} engines, {chip.system}; "
    yield f"rules: {driver.profile.name}."
    yield from ("", "| experiment | found | profile says so | ms |", "|---|---|---|---|")
    bench, every = Bench(driver), list[Found]()
    for found, ms in _found(bench):
        every.append(found)
        says = (
            ""
            if found.agrees is None
            else ("yes" if found.agrees(driver.profile) else "**no**")
        )
        yield _row(found.what, found.answer, says, f"{ms:.0f}")
    yield from ("", f"{bench.compiles} programs were compiled (of at most {MOST}).")
    yield from ("", "## Profiles", "", "| profile | agrees in | not in |", "|---|---|---|")
    for name, differs, asked in fitting(every):
        what = ", ".join(sorted({found.what for found in differs}))
        yield _row(name, f"{asked - len(differs)} of {asked}", what)
    yield from ("", _suggestion(every))


def _found(bench: Bench) -> Iterator[tuple[Found, float]]:
    """Each answer and its time. An experiment that fails is an answer too."""
    for experiment in (*runs.EXPERIMENTS, compiles.experiments):
        begin, asked = time.perf_counter(), iter(experiment(bench))
        while True:
            try:
                found = next(asked, None)
            except UmbelError as error:
                name = experiment.__name__.replace("_", " ")
                said = " ".join(str(error).split())
                found = Found(f"{name}: what is left of it", f"failed: {said}")
            if found is None:
                break
            now = time.perf_counter()
            yield found, (now - begin) * 1e3
            begin = now


def fitting(found: Sequence[Found]) -> list[tuple[str, list[Found], int]]:
    """Every profile, what it says otherwise, and of how much it says something; the one that
    agrees best comes first."""
    asked = [(one, one.agrees) for one in found if one.agrees is not None]
    result = []
    for name in profile.names():
        rules = profile.load(name)
        differs = [one for one, agrees in asked if not agrees(rules)]
        result.append((name, differs, len(asked)))
    return sorted(result, key=lambda r: len(r[1]))


def _suggestion(found: Sequence[Found]) -> str:
    (name, differs, asked), *others = fitting(found)
    if not asked:
        return "Nothing was found out that a profile speaks of."
    equal = [other for other, more, _ in others if len(more) == len(differs)]
    if not differs and not equal:
        return f"The profile **{name}** fits: it says all of this."
    nearest = " and ".join([name, *equal])
    fields = ", ".join(sorted({f"`{one.rule}`" for one in differs}))
    changes = f" A profile of its own would change {fields}." if fields else ""
    return f"Nearest: **{nearest}**, with {len(differs)} of {asked} otherwise.{changes}"


def _row(*cells: str) -> str:
    """A line, whatever breaks the cells have in them."""
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"

"""Starts children until all is tried, and takes down what they say."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import IO, Any

import attrs
from umbel.errors import DeviceError

from umbel_cann.acl.toolkit import Toolkit

LIMIT = 60.0  # seconds that one probe may take
START = 120.0  # seconds for libraries and device: the first time takes long
PATIENCE = 10.0  # and before the process counts as stuck
END = 30.0  # seconds in which it gives them back
VAIN = 3  # children in which nothing works: then nothing will

_FAULT = re.compile(r"\(507\d{3}\)")  # a code of the device, not of an operator

Verdicts = dict[str, "str | None"]  # by the probe's name: None, or why it does not work


@attrs.define
class Tries:
    """What has come of it so far."""

    toolkit: Toolkit
    index: int
    limit: float
    soc: str = ""
    names: tuple[str, ...] = ()
    verdicts: Verdicts = attrs.field(factory=dict)
    under_way: str | None = None
    children: int = 0

    @property
    def working(self) -> list[str]:
        return [name for name, why in self.verdicts.items() if why is None]

    @property
    def done(self) -> bool:
        return bool(self.names) and len(self.verdicts) == len(self.names)

    def finish(self) -> None:
        while not self.done:
            self.go_on()

    def go_on(self) -> None:
        """Another child; at least one verdict more."""
        self.children += 1
        before = len(self.verdicts)
        with tempfile.TemporaryFile() as errors, _started(self._order(), errors) as child:
            end = self._hear(child)
            if self.under_way is not None:
                self.verdicts[self.under_way] = end
                self.under_way = None
            if len(self.verdicts) == before:
                msg = "the chip cannot be tried out"
                raise DeviceError(msg, got=_last(errors) or end)
        if self.children >= VAIN and not self.working:
            msg = "nothing works of what was tried on the chip"
            raise DeviceError(msg, got=next(iter(self.verdicts.values())))

    def _order(self) -> str:
        where = {"toolkit": str(self.toolkit.root), "index": self.index, "limit": self.limit}
        return json.dumps({**where, "known": list(self.verdicts), "working": self.working})

    def _hear(self, child: subprocess.Popen[str]) -> str:
        """Takes down what a child says; why it says no more."""
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(child, lines), daemon=True).start()
        while True:
            # the child has a limit of its own, which is kinder to the device
            limit = START if self.under_way is None else self.limit + PATIENCE
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                child.kill()
                return f"no answer within {limit:g} s"
            if line is None:
                return _ended(child)
            with contextlib.suppress(ValueError):
                self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        if "failed" in told:
            raise DeviceError(told["failed"], do=told["do"])
        if "soc" in told:
            self.soc, self.names = told["soc"], tuple(told["probes"])
        elif "begin" in told:
            self.under_way = told["begin"]
        elif "probe" in told:
            self.verdicts[told["probe"]] = told["why"]
            self.under_way = None


def run(toolkit: Toolkit, index: int, *, limit: float = LIMIT) -> Tries:
    """Tries all; a `DeviceError` where that cannot be done.

    A fault of the device says little of an operator: what met one is tried once more.
    """
    tries = Tries(toolkit, index, limit)
    tries.finish()
    for name, why in list(tries.verdicts.items()):
        if why and _FAULT.search(why):
            del tries.verdicts[name]
    tries.finish()
    return tries


@contextlib.contextmanager
def _started(order: str, errors: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    """A child that finds the same modules as this process, and is gone at the end."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    env["PYTHONSAFEPATH"] = "1"
    command = [sys.executable, "-m", "umbel_cann.probing.child"]
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, env=env, text=True
        )
    except OSError as error:
        msg = "no process can be started to try the chip"
        raise DeviceError(msg, got=error) from error
    try:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(order + "\n")
        yield child
    finally:
        child.kill()
        child.wait()


def _read(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            lines.put(line)
    lines.put(None)


def _ended(child: subprocess.Popen[str]) -> str:
    """How: it gives its device back first, which one that was ill-treated may not do."""
    try:
        code = child.wait(END)
    except subprocess.TimeoutExpired:
        return "the process did not end"
    if code >= 0:
        return f"the process ended with {code}"
    with contextlib.suppress(ValueError):
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process died of signal {-code}"


def _last(errors: IO[bytes]) -> str:
    """The last line of what a child wrote to stderr."""
    errors.seek(0)
    lines = errors.read()[-4096:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""

"""The machine that is measured on: its probes, what others take of it, how it is described."""

from __future__ import annotations

import os
import platform
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import attrs
from figures import Probe

SOURCE = Path(__file__).with_name("probes.c")
FLAGS = ("-O3", "-march=native", "-pthread")
TICK = os.sysconf("SC_CLK_TCK")
MEMORY = 512  # MiB that a probe reads: beyond most caches
LOOK = 0.1  # seconds in which others are looked for
SLACK = 2  # ticks: how coarse the system counts a process's time


@attrs.frozen
class Limits:
    """What some threads reach when they do nothing else."""

    bytes: float  # products of bytes, 10^9 operations a second
    floats: float  # of float32
    bandwidth: float  # GB/s read

    def better(self, other: Limits) -> Limits:
        return Limits(*map(max, attrs.astuple(self), attrs.astuple(other)))


class Machine:
    """Probes in a process of their own, and a second one that keeps a core busy on demand."""

    def __init__(self, threads: int, mebibytes: int = MEMORY) -> None:
        self.threads = threads  # that read at once in a probe
        self.seen: list[Probe] = []
        self._folder = tempfile.TemporaryDirectory()
        self._program = Path(self._folder.name) / "probes"
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, *FLAGS, "-o", self._program, SOURCE], check=True)
        self._probes = subprocess.Popen(
            [self._program, str(mebibytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._spinning: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._probes.kill()
        self._probes.communicate()
        self._folder.cleanup()

    def probe(self) -> Probe:
        latency, bandwidth = self._ask("place", self.threads)
        self.seen.append(Probe(latency, bandwidth))
        return self.seen[-1]

    def limits(self, threads: int) -> Limits:
        return Limits(*self._ask("limits", threads))

    def _ask(self, what: str, threads: int) -> list[float]:
        assert self._probes.stdin is not None
        assert self._probes.stdout is not None
        print(what, threads, file=self._probes.stdin, flush=True)
        return [float(n) for n in self._probes.stdout.readline().split()]

    def settle(self, limit: float, patience: float) -> None:
        """Waits, for so many seconds at most, until nobody else wants the processors."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            watch = Watch(self.pids)
            time.sleep(LOOK)
            if watch.foreign() <= limit:
                return

    @contextmanager
    def spinning(self) -> Iterator[None]:
        """One core is busy, but for `calm`."""
        with subprocess.Popen([self._program, "spin"]) as spinning:
            self._spinning = spinning
            spinning.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                self._spinning = None
                spinning.kill()

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """While it is `spinning`, this is where it spins: the probes want a calm machine."""
        if self._spinning is None:
            yield
            return
        self._spinning.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._spinning.send_signal(signal.SIGSTOP)

    @property
    def pids(self) -> list[int]:
        spinning = [self._spinning.pid] if self._spinning else []
        return [os.getpid(), self._probes.pid, *spinning]


@attrs.define
class Watch:
    """Whose the processors were since it was made."""

    pids: list[int]
    began: float = attrs.field(factory=time.perf_counter)
    busy: int = attrs.field(factory=lambda: busy(Path("/proc/stat").read_text()))
    own: int = 0

    def __attrs_post_init__(self) -> None:
        self.own = own(self.pids)

    def foreign(self) -> float:
        """The share of all processors' time that others had."""
        seconds = time.perf_counter() - self.began
        ticks = busy(Path("/proc/stat").read_text()) - self.busy - (own(self.pids) - self.own)
        return max(0, ticks - SLACK) / (TICK * seconds * (os.cpu_count() or 1))


def busy(stat: str) -> int:
    """Ticks of all processors that were not idle, from /proc/stat; stolen ones among them."""
    user, nice, system, _idle, _waiting, *more = map(int, stat.split()[1:9])
    return user + nice + system + sum(more)


def own(pids: list[int]) -> int:
    """Ticks that these processes have had, and the children of this one that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = round((usage.ru_utime + usage.ru_stime) * TICK)
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks


def describe() -> str:
    """Processor, memory, system and compiler, in a line."""
    told = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^(?:model name|CPU part)\s*:\s*(.*)$", told, re.MULTILINE)
    family = re.findall(r"^(?:cpu family|model|stepping)\s*:\s*(\d+)$", told, re.MULTILINE)[:3]
    name = found[1] if found else platform.machine()
    if family:
        name += f" (family {', model '.join(family[:2])})"
    total = int(re.findall(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())[0])
    version = subprocess.run(
        [os.environ.get("CC", "cc"), "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    cores = f"{os.cpu_count()} processors ({len(os.sched_getaffinity(0))} usable)"
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{name}, {cores}, {total / 2**20:.0f} GiB of memory; {system}; {version}"

"""What `umbel doctor` looks at on the machine itself: it needs no model and no network."""

import math
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path

import umbel
from umbel import host
from umbel.hookspecs import Finding

LIBRARIES = ("numpy", "attrs", "pluggy", "gguf", "jinja2", "regex")
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
SCARCE = 1 << 29  # bytes of memory or disk


def python() -> Iterator[Finding]:
    bits = 64 if sys.maxsize > 1 << 32 else 32
    name, version = platform.python_implementation(), platform.python_version()
    what = f"{name} {version}, {bits} bit, on {platform.system()} {platform.machine()}"
    if bits == 32:
        yield Finding(
            "warning", f"{what}: files above 2 GiB cannot be mapped", "install 64 bit"
        )
    else:
        yield Finding("ok", what)


def libraries() -> Iterator[Finding]:
    """Each is imported: one that is there may still be broken."""
    found = [f"umbel {umbel.__version__}"]
    for name in LIBRARIES:
        try:
            import_module(name)
            found.append(f"{name} {metadata.version(name)}")
        except Exception as error:
            do = f"pip install --force-reinstall {name}"
            yield Finding("error", f"{name} cannot be imported: {error}", do)
    yield Finding("ok", ", ".join(found))


def blas() -> Iterator[Finding]:
    """The library that does most of the host's work."""
    import numpy as np

    built: Mapping[str, Mapping[str, Mapping[str, object]]] = np.show_config(mode="dicts")  # type: ignore[assignment]
    told = built.get("Build Dependencies", {}).get("blas", {})
    name, threads = str(told.get("name", "")), host.set_threads(0)
    what = f"{name} {told.get('version', '')}".strip() + f", threads: {threads}"
    if name.lower() in ("", "none", "blas", "cblas", "lapack", "auto", "unknown"):
        what = f"NumPy names no optimised BLAS ({name or 'none'}): products may be very slow"
        yield Finding("warning", what, "pip install --force-reinstall numpy, for its OpenBLAS")
        return
    yield Finding("ok", what)
    chosen = [f"{name}={os.environ[name]}" for name in THREADS if os.environ.get(name)]
    if chosen and threads < usable_processors():
        yield Finding("note", f"the variable {', '.join(chosen)} limits the threads")


def processors() -> Iterator[Finding]:
    total, allowed, quota = os.cpu_count() or 1, host.cpus(), cpu_quota()
    most, threads = usable_processors(), host.set_threads(0)
    what = f"{allowed} of {total} can be used"
    if quota < allowed:
        what += f", for {quota:g} processors' time (limit of the container)"
    if threads > most:
        do = f"give --threads {most}, or set OPENBLAS_NUM_THREADS={most}"
        yield Finding("warning", f"{what}; {threads} threads would hold each other up", do)
    else:
        yield Finding("ok", what)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > most:
        what = f"the machine is busy (load {load:.1f}): fewer --threads may be faster"
        yield Finding("note", what)


def usable_processors() -> int:
    """The threads that run at the same time here; a part of a processor helps nobody."""
    return max(1, math.floor(min(host.cpus(), cpu_quota())))


def cpu_quota(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float:
    """Processors' time that the control groups of this process allow (both versions)."""
    limits = [math.inf]
    for line in {"0::/", "0:cpu:/", *_read(own).splitlines()}:
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        folder = root / kinds / path.lstrip("/")
        for place in (folder, *folder.parents):
            old = f"{_read(place / 'cpu.cfs_quota_us')} {_read(place / 'cpu.cfs_period_us')}"
            numbers = (_read(place / "cpu.max") or old).split()
            if len(numbers) == 2 and all(n.isdigit() and int(n) for n in numbers):
                limits.append(int(numbers[0]) / int(numbers[1]))
    return min(limits)


def _read(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def memory() -> Iterator[Finding]:
    total, free = host.memory()
    if not total:
        yield Finding("note", "the system does not tell how much there is")
        return
    what = f"{size(free)} of {size(total)} are free"
    do = "close other programs, or raise the limit of the container"
    yield Finding("warning", what, do) if free < SCARCE else Finding("ok", what)


def disk() -> Iterator[Finding]:
    """Where models from the hub are kept."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    folder = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    what = f"{size(free)} are free for models from the hub, in {folder}"
    do = "make room, or set HF_HOME to a folder on another disk"
    yield Finding("warning", what, do) if free < SCARCE else Finding("ok", what)


def hub() -> Iterator[Finding]:
    """The variables that turn downloads elsewhere."""
    endpoint = os.environ.get("HF_ENDPOINT", "")
    if endpoint and not endpoint.startswith(("https://", "http://")):
        do = "begin HF_ENDPOINT with https://, or unset it"
        yield Finding("warning", f"HF_ENDPOINT is no address: {endpoint!r}", do)
    elif endpoint:
        yield Finding("note", f"HF_ENDPOINT: models come from {endpoint}")
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        yield Finding("note", "HF_HUB_OFFLINE: only models that were downloaded before")


def terminal() -> Iterator[Finding]:
    name = (getattr(sys.stdout, "encoding", None) or "none").lower()
    if name.replace("-", "") == "utf8":
        yield Finding("ok", name)
    else:
        do = "set PYTHONUTF8=1, or a locale such as LANG=C.UTF-8"
        yield Finding(
            "warning", f"text is written as {name}: letters that it lacks are lost", do
        )


def size(n: int) -> str:
    """Bytes as users read them."""
    return f"{n / 2**30:.1f} GiB" if n >= 1 << 30 else f"{n / 2**20:.1f} MiB"


CHECKS: Mapping[str, Callable[[], Iterator[Finding]]] = {
    "python": python,
    "libraries": libraries,
    "blas": blas,
    "processors": processors,
    "memory": memory,
    "disk": disk,
    "hub": hub,
    "terminal": terminal,
}

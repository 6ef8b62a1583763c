"""Boots Debian's kernel in QEMU on a machine with NUMA nodes, and runs a command inside.

The processor is emulated, so neither rights nor hardware are needed. This system's folders are
seen inside under their own names, read-only; everything else lies in memory.
Reference: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import lzma
import re
import shlex
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from machines import Machine

QEMU = "qemu-system-x86_64"
FLAGS = "-accel tcg,thread=multi -cpu max -nodefaults -no-reboot -display none"
KERNEL_FLAGS = "console=ttyS0 quiet panic=-1 mitigations=off clocksource=tsc tsc=reliable"
# pages that balancing is looking at are not there, says Linux 6.1 when it is asked
KERNEL_FLAGS += " numa_balancing=disable cryptomgr.notests"
DRIVERS = ("virtio_pci", "9pnet_virtio", "9p")
LINKS = ("bin", "lib", "lib64", "sbin")  # of / into /usr
NEEDED = {
    QEMU: "apt-get install --no-install-recommends qemu-system-x86",
    "apt-get": "it fetches the kernel: this needs Debian",
    "dpkg-deb": "it unpacks the kernel: this needs Debian",
}
ENDED = "the tests ended with "
INIT = """#!/busybox sh
/busybox --install -s /commands
export PATH=/usr/bin:/commands
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
{drivers}
{mounts}
exec >/dev/ttyS1 2>&1 </dev/null
echo "up after $(cut -d ' ' -f 1 /proc/uptime) s"
env {command}
echo "{ended}$?"
poweroff -f
"""


class GuestError(Exception):
    """What is missing here, or a machine that gave no answer."""


@attrs.frozen
class System:
    """What is booted on each machine."""

    kernel: Path
    busybox: Path
    drivers: Sequence[Path]  # each after those that it needs
    folders: Sequence[Path]  # seen inside, outer ones first
    running: set[subprocess.Popen[str]] = attrs.field(factory=set)

    def run(self, machine: Machine, command: Sequence[str], work: Path, limit: float) -> int:
        """The exit code of `command`; what it prints is printed. The kernel's own messages and
        what it starts from lie in `work`."""
        work.mkdir(exist_ok=True)
        start, console = work / "initramfs", work / "console.txt"
        start.write_bytes(b"".join(self._initramfs(command)))
        words = [QEMU, *FLAGS.split(), *machine.arguments(), "-append", KERNEL_FLAGS]
        words += ["-kernel", str(self.kernel), "-initrd", str(start)]
        words += ["-serial", f"file:{console}", "-serial", "stdio"]
        for n, folder in enumerate(self.folders):
            share = f"local,mount_tag=folder{n},security_model=none,readonly=on,multidevs=remap"
            words += ["-virtfs", f"{share},path={str(folder).replace(',', ',,')}"]
        console.write_text("")
        code = self._answer(words, work.name, limit)
        if code is None:
            last = "\n".join(console.read_text(errors="replace").splitlines()[-30:])
            msg = f"no answer from the machine (it has {limit:.0f} s); its console:\n{last}"
            raise GuestError(msg)
        return code

    def stop(self) -> None:
        """Ends all machines."""
        for qemu in list(self.running):
            qemu.kill()

    def _answer(self, words: Sequence[str], name: str, limit: float) -> int | None:
        """Runs qemu and prints the command's output; its exit code, None if it told none."""
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        ) as qemu:
            self.running.add(qemu)
            alarm = threading.Timer(limit, qemu.kill)
            alarm.start()
            try:
                assert qemu.stdout is not None
                for line in qemu.stdout:
                    if line.startswith(ENDED):
                        return int(line.removeprefix(ENDED))
                    print(f"{name}: {line}", end="", flush=True)
                return None
            finally:
                alarm.cancel()
                qemu.kill()
                self.running.remove(qemu)

    def _initramfs(self, command: Sequence[str]) -> Iterator[bytes]:
        for name in ("proc", "sys", "dev", "tmp", "commands"):
            yield _entry(name, stat.S_IFDIR | 0o755)
        for name in LINKS:
            if (link := Path("/", name)).is_symlink():
                yield _entry(name, stat.S_IFLNK | 0o777, str(link.readlink()).encode())
        for n, driver in enumerate(self.drivers):
            yield _entry(f"driver{n}", stat.S_IFREG | 0o644, _unpacked(driver))
        yield _entry("busybox", stat.S_IFREG | 0o755, self.busybox.read_bytes())
        yield _entry("init", stat.S_IFREG | 0o755, self._script(command).encode())
        yield _entry("TRAILER!!!", 0)

    def _script(self, command: Sequence[str]) -> str:
        how = "trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro"
        places = [shlex.quote(str(folder)) for folder in self.folders]
        mounts = (
            f"mkdir -p {place}; mount -t 9p -o {how} folder{n} {place}"
            for n, place in enumerate(places)
        )
        return INIT.format(
            drivers="\n".join(f"insmod /driver{n}" for n in range(len(self.drivers))),
            mounts="\n".join(mounts),
            command=shlex.join(command),
            ended=ENDED,
        )


def fetched(work: Path, folders: Sequence[Path]) -> System:
    """The system, its kernel from Debian's archive unless it is in `work` already."""
    missing = [f"{name} ({why})" for name, why in NEEDED.items() if not shutil.which(name)]
    if missing:
        msg = f"not here: {'; '.join(missing)}"
        raise GuestError(msg)
    about = _output("apt-cache", "depends", "linux-image-amd64")
    name = re.search(r"Depends: (linux-image-\S+)", about)
    if name is None:
        msg = "the package lists have no linux-image-amd64 (apt-get update; this needs Debian)"
        raise GuestError(msg)
    kernel, tools = (_unpack(package, work) for package in (name[1], "busybox-static"))
    return System(
        kernel=_ready(next(kernel.glob("boot/vmlinuz-*"))),
        busybox=next(tools.rglob("bin/busybox")),
        drivers=list(_with_needed(DRIVERS, kernel)),
        folders=_outermost([*folders, Path("/usr")]),
    )


def _unpack(package: str, work: Path) -> Path:
    """The folder of a package's files, fetched where it is not there."""
    target = work / package
    if not target.exists():
        half = work / "half"
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        print(f"fetching {package}", flush=True)
        _output("apt-get", "download", package, cwd=half)
        _output("dpkg-deb", "-x", str(next(half.glob("*.deb"))), str(half / "files"))
        (half / "files").rename(target)
        shutil.rmtree(half)
    return target


def _ready(kernel: Path) -> Path:
    """A kernel that the machine need not unpack, which would take it longer than all the rest
    of its start. Reference: the kernel's Documentation/x86/boot.rst."""
    ready = kernel.with_name("vmlinux")
    if not ready.exists():
        data = kernel.read_bytes()
        start = (data[0x1F1] + 1) * 512 + int.from_bytes(data[0x248:0x24C], "little")
        try:  # behind the packed kernel stands its length
            unpacked = lzma.LZMADecompressor().decompress(data[start:])
        except lzma.LZMAError:  # packed in another way
            return kernel
        half = ready.with_name("half")
        half.write_bytes(unpacked)
        half.rename(ready)
    return ready


def _output(*words: str, cwd: Path | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        msg = f"this failed: {shlex.join(words)}\n{done.stderr}"
        raise GuestError(msg)
    return done.stdout


def _with_needed(names: Sequence[str], kernel: Path) -> dict[Path, None]:
    """The files of drivers, before each those that it says it needs."""
    files = kernel.rglob("*.ko*")
    known = {path.name.partition(".")[0].replace("-", "_"): path for path in files}
    found: dict[Path, None] = {}
    for path in (known[name] for name in names):
        needs = re.search(rb"\0depends=([^\0]*)\0", _unpacked(path))
        deeper = needs[1].decode().replace("-", "_").split(",") if needs and needs[1] else []
        found |= {**_with_needed(deeper, kernel), path: None}
    return found


def _unpacked(driver: Path) -> bytes:
    data = driver.read_bytes()
    return lzma.decompress(data) if driver.suffix == ".xz" else data


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """Without those that lie in another."""
    return [
        folder
        for folder in dict.fromkeys(folders)
        if not any(other in folder.parents for other in folders)
    ]


def _entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """One file of the archive that the kernel starts from."""
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = "070701" + "".join(f"{field:08x}" for field in fields) + name + "\0"
    return b"".join(part + bytes(-len(part) % 4) for part in (head.encode(), data))

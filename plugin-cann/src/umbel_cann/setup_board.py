"""`umbel-cann-setup`: is this machine ready for its Ascend NPU, and what is to be done?

It is one file that imports the standard library alone and keeps to what Python 3.9 can read:
images of boards come with that, pip refuses to install Umbel into it, and this file can be run
from a checkout all the same. The checks come in the order in which a board is set up. Nothing
is downloaded, and no vendor library is loaded. `--apply` changes two things, each shown before:
the user's groups, and a file with the environment of CANN.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PYTHON = (3, 10)  # that Umbel needs
OLDEST = (8, 0)  # version of CANN
MACHINES = ("aarch64", "x86_64")
MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")  # devices that every program opens
GROUP = "HwHiAiUser"  # that the driver makes
VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
INSTALLED = ("cann-*", "cann", "ascend-toolkit/latest", "ascend-toolkit/[0-9]*", "nnrt/latest")
LIBRARIES = ("libascendcl.so", "libnnopbase.so")
OPERATORS = ("libopapi.so", "libopapi_math.so")  # up to 8.3 one, from 8.5 on several
STUBS = {"stub", "stubs", "devlib"}  # folders of libraries that do nothing
BUILT_IN = "opp/built-in/op_impl/ai_core/tbe"
SCRIPTS = ("set_env.sh", "bin/setenv.bash")  # in a toolkit, or the first one beside it
# A release such as 8.1.RC1; beside it stand numbers of packages (7.7.0.1.238) and of the format
RELEASE = r"(?:_running_version=\[[^:\]\n]*:|^version_dir=|^version=)(\d+\.\d+[\w.]*)"
ALONE = r"^Version=(\d+\.\d+[\w.]*)"  # where no release is told
DRIVER = r"^Version=(\S+)|^package_version=(\S+)"
MARK = "# Written by umbel-cann-setup, which may write it again.\n"
SCARCE = 1 << 30  # bytes of memory that are free


class Step(NamedTuple):
    """One thing that was looked at."""

    level: str  # ok, note, or todo
    topic: str
    what: str
    do: str = ""
    fix: Callable[[], str] | None = None  # does it, and says what it did; OSError
    shown: str = ""  # what is written


class Machine(NamedTuple):
    """What is looked at; tests make up theirs below a folder of their own."""

    root: Path
    home: Path | None
    environ: Mapping[str, str]
    user: str
    uid: int  # of that user
    gids: frozenset[int]  # that this session has
    rights: bool  # of root: groups can be changed
    sudo: bool  # for another user, whose files are left alone
    python: tuple[int, int]
    arch: str
    run: Callable[[Sequence[str]], str | None]  # what a program prints; None where it fails

    def read(self, name: str | Path) -> str:
        try:
            return (self.root / name).read_text("utf-8", "replace")
        except OSError:
            return ""

    def below(self, folder: str, pattern: str) -> list[Path]:
        return sorted((self.root / folder).glob(pattern))

    def groups(self) -> dict[int, tuple[str, list[str]]]:
        """Names and members by number."""
        rows = (line.split(":") for line in self.read("etc/group").splitlines())
        good = (row for row in rows if len(row) == 4 and row[2].isdigit())
        return {int(row[2]): (row[0], row[3].split(",")) for row in good}


def here() -> Machine:
    """This machine, for the user who typed the command, through sudo or not."""
    import pwd

    other = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    sudo = other not in ("", "root")
    try:
        who = pwd.getpwnam(other) if sudo else pwd.getpwuid(os.getuid())
    except KeyError:  # in a container
        who = pwd.struct_passwd(("", "", os.getuid(), os.getgid(), "", "", ""))
    home = "" if sudo else os.environ.get("HOME") or who.pw_dir
    return Machine(
        root=Path("/"),
        home=Path(home) if home else None,
        environ=os.environ,
        user=who.pw_name or str(who.pw_uid),
        uid=who.pw_uid,
        gids=frozenset(os.getgrouplist(who.pw_name, who.pw_gid) if sudo else os.getgroups()),
        rights=os.getuid() == 0,
        sudo=sudo,
        python=sys.version_info[:2],
        arch=platform.machine(),
        run=_run,
    )


def _run(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


# what is looked at


def steps(machine: Machine) -> list[Step]:
    """All of it, in the order in which a board is set up."""
    chips = chips_of(machine)
    checks = [_image(machine), _driver(machine), _access(machine), _toolkit(machine, chips)]
    checks += [_environment(machine), _python(machine), _memory(machine), _health(chips)]
    return [step for check in checks for step in check]


def chips_of(machine: Machine) -> list[tuple[str, str]] | None:
    """Name and health of each chip as npu-smi prints them; None where that does not run."""
    for folder in ("", "usr/local/sbin/", "usr/local/bin/"):
        program = str(machine.root / folder / "npu-smi") if folder else "npu-smi"
        if text := machine.run([program, "info"]):
            break
    else:
        return None
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if "|" in line]
    first = next((row for row in rows if row[0].split()[:2] == ["NPU", "Name"]), None)
    if first is None or "Health" not in first[1]:
        return None
    chips = []
    for row in rows:
        named = re.match(r"\s*\d+\s+(\d{3}\w+)", row[0])
        if named and len(row) > 1:
            chips.append((named[1], row[1].strip()))
    return chips


def _image(machine: Machine) -> Iterator[Step]:
    named = re.search(r'^PRETTY_NAME="?([^"\n]*)', machine.read("etc/os-release"), re.M)
    what = f"{named[1] if named else 'Linux'}, {machine.arch}"
    if machine.arch in MACHINES:
        yield Step("ok", "image", what)
    else:
        do = "take a 64-bit image: CANN is made for aarch64 and x86_64"
        yield Step("todo", "image", what, do)


def _driver(machine: Machine) -> Iterator[Step]:
    nodes = machine.below("dev", "davinci[0-9]*")
    files = ("usr/local/Ascend/driver/version.info", "etc/sys_version.conf")
    told = _told(machine, DRIVER, *files)
    if not nodes:
        do = "install driver and firmware of the chip (on a board: its image), and boot again"
        if (machine.root / ".dockerenv").exists():
            names = " ".join(f"--device /dev/{name}" for name in ("davinci0", *MANAGERS))
            do = f"start the container with {names}"
        yield Step("todo", "driver", "there is no /dev/davinci0: no chip, or no driver", do)
        return
    names = ", ".join(path.name for path in nodes)
    yield Step("ok", "driver", f"{names}; version {told or 'not told'}")
    missing = [n for n in MANAGERS if not (machine.root / "dev" / n).exists()]
    if missing:
        do = "`sudo dmesg` tells why; install the driver again"
        yield Step("todo", "driver", f"/dev/ lacks {', '.join(missing)}", do)


def _told(machine: Machine, pattern: str, *files: str | Path) -> str:
    """What the first of these files tells that has it."""
    found = (re.search(pattern, machine.read(name), re.M) for name in files)
    return next((next(filter(None, one.groups())) for one in found if one), "")


def _access(machine: Machine) -> Iterator[Step]:
    """Who may open the chip: the members of its group, and never everybody."""
    paths = machine.below("dev", "davinci[0-9]*")
    paths += [p for n in MANAGERS if (p := machine.root / "dev" / n).exists()]
    opened = [path for path in paths if path.stat().st_mode & stat.S_IWOTH]
    closed = [path for path in paths if not _may(machine, path.stat())]
    for gid in dict.fromkeys(path.stat().st_gid for path in closed):
        yield _admit(machine, gid, [path for path in closed if path.stat().st_gid == gid])
    if opened:
        do = f"sudo chmod 660 {' '.join(map(str, opened))}"
        yield Step("todo", "group", "every user may open the chip: its group is enough", do)
    elif paths and not closed:
        yield Step("ok", "group", f"{machine.user} may open the chip")


def _may(machine: Machine, told: os.stat_result) -> bool:
    """Whether the mode lets this user read and write."""
    group = 3 if told.st_gid in machine.gids else 0
    shift = 6 if told.st_uid == machine.uid else group
    return machine.uid == 0 or told.st_mode >> shift & 6 == 6


def _admit(machine: Machine, gid: int, paths: list[Path]) -> Step:
    """How this user gets in."""
    told = " ".join(map(str, paths))
    what = f"{machine.user} may not open {told}"
    name, members = machine.groups().get(gid, ("", []))
    if gid == 0 or not name:
        return Step("todo", "group", what, f"sudo chgrp {GROUP} {told}")
    if gid in machine.gids or any(~path.stat().st_mode & 0o060 for path in paths):
        return Step("todo", "group", what, f"sudo chmod 660 {told}")
    if machine.user in members:
        return Step("todo", "group", f"{what}, but is in the group {name}", "log in again")
    command = ["usermod", "-aG", name, machine.user]

    def fix() -> str:
        if machine.run(command) is None:
            msg = f"{' '.join(command)} failed"
            raise OSError(msg)
        return f"{machine.user} is in the group {name}: log in again"

    do = f"sudo {' '.join(map(shlex.quote, command))}, and log in again"
    return Step("todo", "group", what, do, fix if machine.rights else None)


def toolkits(machine: Machine) -> list[Path]:
    """The folders with CANN, the one first that the plugin takes."""
    named = [Path(machine.environ[n]) for n in VARIABLES if machine.environ.get(n)]
    base = "usr/local/Ascend"
    found = [p for pattern in INSTALLED for p in sorted(machine.below(base, pattern), key=_age)]
    return list(dict.fromkeys(path.resolve() for path in (*named, *found) if path.is_dir()))


def _age(path: Path) -> list[int]:
    """The newest first."""
    return [-int(number) for number in re.findall(r"\d+", path.name)]


def version_of(machine: Machine, folder: Path) -> str:
    info = f"{machine.arch}-linux/ascend_toolkit_install.info"
    files = (info, "version.cfg", "opp/version.info", "runtime/version.info")
    named = re.search(r"\d+\.\d+[\w.]*$", folder.name)
    paths = [folder / name for name in files]
    told = _told(machine, RELEASE, *paths) or _told(machine, ALONE, *paths)
    return told or (named[0] if named else "")


def _toolkit(machine: Machine, chips: list[tuple[str, str]] | None) -> Iterator[Step]:
    family = next((_family(name) for name, _ in chips or ()), "")
    do = f"install the toolkit and the kernels{f' for {family}' if family else ''}: one version"
    do += f", {OLDEST[0]}.{OLDEST[1]} or newer"
    found = toolkits(machine)
    if not found:
        yield Step("todo", "CANN", "it is not in /usr/local/Ascend", do)
        return
    used, version = found[0], version_of(machine, found[0])
    what = f"CANN {version or 'of an unknown version'} ({used})"
    if (0,) < tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        yield Step("todo", "CANN", f"{what} is too old", f"{do}; the driver may stay as it is")
        return
    yield Step("ok", "CANN", what)
    others = dict.fromkeys(version_of(machine, path) for path in found[1:])
    if told := ", ".join(other for other in others if other not in ("", version)):
        do = "the set_env.sh that is sourced decides"
        yield Step("note", "CANN", f"also here: {told}", do)
    there = {p.name for folder in folders(used, machine.arch) for p in folder.glob("*.so")}
    lacking = [name for name in LIBRARIES if name not in there]
    lacking += [] if there & {*OPERATORS} else OPERATORS[:1]
    if lacking:
        do = f"install the toolkit for {machine.arch} again"
        yield Step("todo", "CANN", f"{', '.join(lacking)} not found in {used}", do)
    yield _kernels(machine, used, version, family)


def folders(used: Path, arch: str) -> list[Path]:
    """Those that may hold libraries."""
    inner = ("lib64", f"{arch}-linux/lib64", "runtime/lib64", "fwkacllib/lib64")
    return [used / name for name in (*inner, f"{BUILT_IN}/op_api/lib/linux/{arch}")]


def _family(name: str) -> str:
    """Of a chip as npu-smi calls it: 310B4 is a 310b, whose kernels have that name."""
    found = re.match(r"910_93|\d+[A-Za-z]?", name)
    return found[0].lower() if found else name.lower()


def _kernels(machine: Machine, used: Path, version: str, family: str) -> Step:
    folders = [
        path for path in sorted((used / BUILT_IN / "kernel").glob("ascend*")) if path.is_dir()
    ]
    full = [path for path in folders if {p.name for p in path.iterdir()} - {"ops_oam"}]
    names = [path.name.replace("ascend", "", 1) for path in full]
    there = ", ".join(names) or "none"
    do = f"install Ascend-cann-kernels-{family or 'CHIP'}_{version}_linux-{machine.arch}.run"
    do += " (from 8.5 on: ops); its version is the toolkit's"
    if (family or there) not in names and not (names and not family):
        return Step("todo", "kernels", f"for {family or 'any chip'} are missing: {there}", do)
    infos = (f"{machine.arch}-linux/ascend_ops_install.info", "opp_kernel/version.info")
    other = _told(machine, RELEASE, *(used / name for name in infos))
    if other and version and other != version:
        return Step("todo", "kernels", f"of {other} do not fit the toolkit's {version}", do)
    return Step("ok", "kernels", f"for {there}" + (f", {other}" if other else ""))


def _environment(machine: Machine) -> Iterator[Step]:
    found, environ = toolkits(machine), machine.environ
    if environ.get("UMBEL_CANN_SIMULATOR"):
        do = "unset UMBEL_CANN_SIMULATOR"
        yield Step("note", "environment", "Umbel takes the simulator, not the chip", do)
    paths = environ.get("LD_LIBRARY_PATH", "").split(":")
    stubs = [path for path in paths if STUBS & set(path.split("/"))]
    if stubs:
        do = f"take it out of LD_LIBRARY_PATH, where a file of your shell puts it: {stubs[0]}"
        yield Step("todo", "environment", "a folder of stub libraries is in the way", do)
    if not found:
        return
    operators, own = environ.get("ASCEND_OPP_PATH", ""), found[0] / "opp"
    if not operators or not Path(operators).is_dir():
        yield _environment_file(machine, found[0])
    elif own.is_dir() and own.resolve() != Path(operators).resolve():
        what = f"ASCEND_OPP_PATH is {operators}, of another CANN than {found[0]}"
        do = "source one set_env.sh alone, in a new shell"
        yield Step("todo", "environment", what, do)
    else:
        yield Step("ok", "environment", f"ASCEND_OPP_PATH is {operators}")


def text_of(machine: Machine, toolkit: Path) -> str:
    """What the file has: lines of a shell. Empty where the toolkit has no script."""
    beside = [folder / SCRIPTS[0] for folder in (toolkit.parent, toolkit)]
    script = next((p for p in (*beside, toolkit / SCRIPTS[1]) if p.is_file()), None)
    if script is None:
        return ""
    lines = [f". {shlex.quote(str(script))}"]
    base = machine.root / "usr/local/Ascend/driver/lib64"
    folders = [path for path in (base, base / "driver", base / "common") if path.is_dir()]
    if folders:
        value = ":".join(shlex.quote(str(path)) for path in folders)
        lines.append(f"export LD_LIBRARY_PATH={value}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}")
    return MARK + "\n".join(lines) + "\n"


def _environment_file(machine: Machine, toolkit: Path) -> Step:
    """The shell's own file is the user's affair: one line for it is shown."""
    known = machine.environ.get("ASCEND_OPP_PATH")
    what = f"ASCEND_OPP_PATH {'leads nowhere' if known else 'is not set'}"
    text, topic = text_of(machine, toolkit), "environment"
    if not text:
        do = "install the toolkit again"
        return Step("todo", topic, f"{what}, and {toolkit} has no set_env.sh", do)
    own = str(machine.home / ".config") if machine.home else ""
    config = machine.environ.get("XDG_CONFIG_HOME") or own
    if machine.sudo or not config:
        do = f"{text.splitlines()[1]} (or run this without sudo, with a home, for a file)"
        return Step("todo", topic, what, do)
    path = Path(config) / "umbel/cann.env"
    line = f". {shlex.quote(str(path))}"
    try:
        before = path.read_text("utf-8", "replace") if os.path.lexists(path) else ""
    except OSError as error:
        return Step("todo", topic, f"{what}, and {path} cannot be read", f"look at it: {error}")
    if before == text:
        do = f"{line}   and put that line at the end of ~/.bashrc"
        return Step("todo", topic, f"{what} in this shell; the file for it is there", do)
    if before and not before.startswith(MARK):
        do = f"move it away, or put into it: {text.splitlines()[1]}"
        return Step("todo", topic, f"{what}, and {path} is a file of your own", do)

    def fix() -> str:
        write(path, text)
        return f"wrote {path}"

    do = f"write {path}, then {line}"
    return Step("todo", topic, what, do, fix, f"{path}:\n{text}")


def write(path: Path, text: str) -> None:
    """All of it or nothing: beside its place, and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _python(machine: Machine) -> Iterator[Step]:
    running = ".".join(map(str, machine.python))
    if machine.python >= PYTHON:
        yield Step("ok", "Python", running)
        return
    others = [p for f in ("bin", "local/bin") for p in machine.below(f"usr/{f}", "python3.??")]
    condas = [str(path) for path in machine.below("usr/local", "mini*/bin/conda")]
    conda = machine.environ.get("CONDA_EXE") or next(iter(condas), "")
    if others:
        do = f"{others[-1]} -m venv ~/umbel && . ~/umbel/bin/activate"
    elif conda:
        do = f"{conda} create -n umbel python=3.11 && conda activate umbel"
    else:
        do = "install one: a package python3.11 of the system, or Miniforge (conda) for aarch64"
    yield Step("todo", "Python", f"{running} is too old: Umbel needs 3.10 or newer", do)


def _memory(machine: Machine) -> Iterator[Step]:
    rows = re.findall(r"^(\w+):\s+(\d+) kB", machine.read("proc/meminfo"), re.M)
    told = {name: int(number) << 10 for name, number in rows}
    if "MemTotal" not in told:
        return
    total, free = told["MemTotal"], told.get("MemAvailable", 0)
    swap = told.get("SwapTotal", 0)
    what = f"{_gib(free)} of {_gib(total)} are free, {_gib(swap)} of swap"
    if free < SCARCE:
        do = "close programs; without a desktop: sudo systemctl isolate multi-user.target"
        yield Step("todo", "memory", what, do)
    elif not swap and total < 9 << 30:
        do = "`free -h` shows it; a swap file keeps other programs alive beside a large model"
        yield Step("note", "memory", what, do)
    else:
        yield Step("ok", "memory", what)


def _gib(n: int) -> str:
    return f"{n / 2**30:.1f} GiB"


def _health(chips: list[tuple[str, str]] | None) -> Iterator[Step]:
    if chips is None:
        do = "put npu-smi on the PATH (/usr/local/sbin), or install the driver again"
        yield Step("todo", "npu-smi", "it is not here, or fails: the chip is not known", do)
    for i, (name, health) in enumerate(chips or ()):
        good = health == "OK"
        do = "" if good else f"`npu-smi info -t health -i {i}` says more; boot again"
        yield Step("ok" if good else "todo", "npu-smi", f"chip {i}, {name}: {health}", do)


# what is shown and done


def main(argv: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """0: all is well; 1: something is to be done."""
    text = "Looks at what an Ascend NPU needs on this machine, and says what to do."
    parser = argparse.ArgumentParser(prog="umbel-cann-setup", description=text)
    text = "do what can be done: a group for the user (as root), a file with the environment"
    parser.add_argument("--apply", action="store_true", help=text)
    apply = parser.parse_args(argv).apply
    machine = machine or here()
    found = steps(machine)
    failed = _apply(found) if apply else False
    found = steps(machine) if apply else found
    width = max(len(step.topic) for step in found)
    for step in found:
        print(f"{step.level:4}  {step.topic:{width}}  {step.what}")
    todo = [step for step in found if step.level == "todo"]
    print("\nTo do, in this order:" if todo else "\nNothing to do.")
    for i, step in enumerate(todo, 1):
        print(f"{i}. {step.topic}: {step.do}")
    for step in found:
        if step.level == "note":
            print(f"*  {step.topic}: {step.do}")
    mine = [(i, step) for i, step in enumerate(todo, 1) if step.fix]
    if mine and not apply:
        print(f"\n`{parser.prog} --apply` does {' and '.join(str(i) for i, _ in mine)}:")
        print("".join(f"{step.shown or step.do}\n" for _, step in mine), end="")
    return int(bool(todo) or failed)


def _apply(found: list[Step]) -> bool:
    """Whether something could not be done."""
    failed = False
    for step in found:
        if step.fix is None:
            continue
        if step.shown:
            print(step.shown)
        try:
            print(f"done: {step.fix()}")
        except OSError as error:
            failed = True
            print(f"failed: {step.topic}: {error}")
    print()
    return failed


if __name__ == "__main__":
    sys.exit(main())

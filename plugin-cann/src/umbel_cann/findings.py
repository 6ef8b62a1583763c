"""What `umbel doctor` says of this machine's NPUs. It loads no vendor library."""

from __future__ import annotations

import grp
import os
import platform
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from umbel.errors import UmbelError
from umbel.hookspecs import Finding

from umbel_cann import smi
from umbel_cann.acl import LIBRARIES
from umbel_cann.acl.toolkit import STUBS, VARIABLES, Toolkit, toolkits
from umbel_cann.nodes import VISIBLE, nodes, visible

MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")  # devices that every program opens
OLDEST = (8, 0)  # version of the toolkit
FOLDERS = (*VARIABLES, "ASCEND_OPP_PATH")  # variables that name one
LOGS = "ASCEND_SLOG_PRINT_TO_STDOUT"
QUICK = 1.5  # seconds that npu-smi may take: a doctor is to be quick
SCARCE = 512  # MB of a chip's memory
BUSY = 90  # per cent
_SOURCE = "source the set_env.sh of the toolkit, in the shell that starts umbel"


def findings(root: Path = Path("/")) -> Sequence[Finding]:
    try:
        found = toolkits(root)
    except UmbelError as error:
        return [Finding("error", error.what, error.do or "")]
    if found and found[0].simulated:
        chip, where = found[0].chip, found[0].root
        note = Finding("note", f"a simulator stands for the NPU: a {chip} ({where})")
        return [note, *_libraries(found[0]), *_operators(found[0]), *_health(found[0].root)]
    chips = nodes(root)
    if not chips and not found:
        none = Finding("note", "no Ascend NPU, and no CANN toolkit")
        return [none, *_variables()]
    told = [*_devices(root, chips), *_driver(root), *_toolkit(found), *_environment(chips)]
    return [*told, *(_operators(found[0]) if found else ()), *_health()]


def _devices(root: Path, chips: list[Path]) -> Iterator[Finding]:
    if not chips:
        do = "install the driver and firmware of the chip, and boot again"
        yield Finding("error", "CANN is here, but no chip: there is no /dev/davinci0", do)
        return
    names = ", ".join(path.name for path in chips)
    yield Finding("ok", f"{len(chips)} device nodes: {names}")
    managers = [root / "dev" / name for name in MANAGERS]
    for path in (p for p in managers if not p.exists()):
        do = "the driver is not loaded whole: `dmesg` tells why; install it again"
        yield Finding("error", f"/dev/{path.name} is missing", do)
    for path in (p for p in (*chips, *managers) if p.exists()):
        if not os.access(path, os.R_OK | os.W_OK):
            yield Finding("error", f"{path} cannot be opened by this user", _permission(path))
        elif stat.S_IMODE(path.stat().st_mode) & 0o006:
            do = f"sudo chmod 660 {path}: members of its group need no more"
            yield Finding("warning", f"{path} is open to every user of the machine", do)


def _permission(path: Path) -> str:
    """How this user gets in; never by opening the device to everybody."""
    number = path.stat().st_gid
    try:
        group = grp.getgrgid(number).gr_name
    except KeyError:
        group = f"the group {number}"
    if number == 0:
        return f"sudo chgrp HwHiAiUser {path}, and put the user into that group"
    if number in os.getgroups():
        return f"sudo chmod 660 {path}: its group {group} may not use it yet"
    return f"sudo usermod -aG {group} $USER, and log in again"


def _driver(root: Path) -> Iterator[Finding]:
    version = _first(root, "usr/local/Ascend/driver/version.info", "etc/sys_version.conf")
    if version:
        yield Finding("ok", f"driver {version}")
    else:
        yield Finding("warning", "no driver version is told in /usr/local/Ascend/driver")


def _first(root: Path, *files: str) -> str:
    for name in files:
        try:
            lines = (root / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        told = [line.partition("=")[2].strip() for line in lines if "ersion" in line]
        if told:
            return told[0]
    return ""


def _toolkit(found: list[Toolkit]) -> Iterator[Finding]:
    if not found:
        do = "install the CANN toolkit and the kernels of this chip"
        yield Finding("error", "there is a chip, but no CANN in /usr/local/Ascend", do)
        return
    used, others = found[0], [t.version or t.root.name for t in found[1:]]
    version = used.version or "of an unknown version"
    more = f"; also here: {', '.join(others)}" if others else ""
    yield Finding("ok", f"CANN {version} ({used.root}){more}")
    numbers = used.version.split(".")[:2]
    if all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < OLDEST and numbers[0]:
        do = f"install {OLDEST[0]}.{OLDEST[1]} or newer"
        yield Finding("warning", f"CANN {version} is older than what Umbel is made for", do)
    yield from _libraries(used)


def _environment(chips: list[Path]) -> Iterator[Finding]:
    """What is set for the vendor's libraries, and what is not."""
    if not any(os.environ.get(name) for name in ("ASCEND_OPP_PATH", "ASCEND_HOME_PATH")):
        yield Finding("warning", "ASCEND_OPP_PATH and ASCEND_HOME_PATH are not set", _SOURCE)
    yield from _variables()
    paths = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if stubs := [path for path in paths if STUBS & set(path.split("/"))]:
        do = f"take it out of LD_LIBRARY_PATH: {stubs[0]}"
        yield Finding("error", "LD_LIBRARY_PATH has a folder of stub libraries", do)
    named = os.environ.get(VISIBLE)
    if named is not None and len(visible(chips)) != len(named.split(",")):
        what = f"{VISIBLE}={named} does not fit the {len(chips)} chips that are here"
        yield Finding("error", what, "unset it, or name some of them: 0, ...")
    if os.environ.get(LOGS, "0") != "0":
        what = f"{LOGS} is set: the libraries' log gets into what umbel writes"
        yield Finding("warning", what, f"unset {LOGS} unless you look for a fault")


def _variables() -> Iterator[Finding]:
    for name in FOLDERS:
        value = os.environ.get(name)
        if value and not Path(value).is_dir():
            yield Finding("error", f"{name} names a folder that is not there: {value}", _SOURCE)


def _libraries(used: Toolkit) -> Iterator[Finding]:
    runtime, base, *operators = LIBRARIES
    missing = [name for name in (runtime, base) if used.library(name) is None]
    if not any(used.library(name) for name in operators):
        missing.append(operators[0])
    if missing:
        do = f"install CANN for {platform.machine()} again, or choose another: ASCEND_HOME_PATH"
        yield Finding("error", f"{', '.join(missing)} not found in {used.root}", do)
    else:
        yield Finding("ok", "its libraries are there")


def _operators(used: Toolkit) -> Iterator[Finding]:
    """What chips were found to do with this toolkit."""
    from umbel_cann.probing import known, report

    found = known(used)
    if not found:
        what = "what the chip can do with this CANN was not tried yet"
        more = "the first use of the chip does it, and `umbel cann probe` prints it as a table"
        yield Finding("note", f"{what}: {more}")
    for tried in found:
        yield from report.findings(tried)


def _health(toolkit: Path | None = None) -> Iterator[Finding]:
    text = smi.run(toolkit, QUICK)
    if not text:
        what = "npu-smi is not here, fails or takes long: the chip's health is not known: "
        do = "put it on the PATH (/usr/local/sbin, or the driver's tools)"
        yield Finding("note", what + do)
        return
    for chip in smi.parse(text):
        yield from _state(chip)


def _state(chip: Mapping[str, object]) -> Iterator[Finding]:
    """One chip as npu-smi sees it."""
    number = chip.get("npu", 0)
    name = f"chip {number} {chip.get('name', '')}".strip()
    if chip.get("health") == "OK":
        yield Finding("ok", f"{name}: OK")
    else:
        do = f"`npu-smi info -t health -i {number}` says more; boot again"
        yield Finding("error", f"{name}: {chip.get('health', '?')}", do)
    for kind in ("hbm", "ddr"):
        used, total = (chip.get(f"memory_{kind}_{what}") for what in ("used", "total"))
        if isinstance(used, int) and isinstance(total, int) and total > 0:
            yield _memory(name, number, (total - used) >> 20, total >> 20)
            break
    busy = chip.get("utilisation_percent")
    if isinstance(busy, (int, float)) and busy >= BUSY:
        do = f"`npu-smi info -t usages -i {number}` shows it: wait, or stop the other program"
        yield Finding("warning", f"{name} is busy ({busy} %): steps may time out", do)


def _memory(name: str, number: object, free: int, total: int) -> Finding:
    what = f"{name} has {free} of {total} MB free"
    if free >= SCARCE:
        return Finding("ok", what)
    do = "close other programs on it; take a smaller model, a file of fewer bits or a smaller "
    return Finding("warning", what, f"{do}--ctx (`npu-smi info -t memory -i {number}`)")

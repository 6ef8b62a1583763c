"""`umbel-cann-setup` on machines that are made up of files."""

from __future__ import annotations

import ast
import os
import platform
import pwd
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from umbel_cann import acl, findings, setup_board
from umbel_cann.acl import toolkit
from umbel_cann.setup_board import Machine, main

DATA = Path(__file__).parent / "data"
SMI = (DATA / "npu-smi-board.txt").read_text()
FILE = Path(setup_board.__file__)
USER, GID = 4321, os.getgid() or 4322  # neither is this process's own user
KERNELS = f"{setup_board.BUILT_IN}/kernel"
DEVICES = ("davinci0", *setup_board.MANAGERS)


def make(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def add_toolkit(root: Path, version: str, chip: str = "310b", kernels: str = "") -> Path:
    """As its installer leaves it."""
    base = root / "usr/local/Ascend/ascend-toolkit"
    folder = base / version
    for name in acl.LIBRARIES[:3]:
        make(folder / "lib64" / name)
    info = make(folder / "aarch64-linux/ascend_toolkit_install.info")
    info.write_text(f"package_name=Ascend-cann-toolkit\nversion={version}\narch=aarch64\n")
    make(folder / KERNELS / f"ascend{chip}/mat_mul/MatMul.o")
    made = f"Version=7.7.0.1.238\nversion_dir={kernels or version}\n"
    make(folder / "opp_kernel/version.info", made)
    make(base / "set_env.sh", f"export ASCEND_OPP_PATH={folder}/opp\n")
    latest = base / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(folder)
    return folder


@pytest.fixture
def board(tmp_path: Path) -> Machine:
    """An OrangePi AIPro on which everything is as it should be."""
    root = tmp_path / "board"
    make(root / "etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.3 LTS"\n')
    make(root / "etc/group", f"root:x:0:\nHwHiAiUser:x:{GID}:HwHiAiUser\n")
    make(root / "proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\n")
    make(
        root / "usr/local/Ascend/driver/version.info",
        "Version=24.1.rc3\nascendhal_version=7.35.19\n",
    )
    (root / "usr/local/Ascend/driver/lib64/common").mkdir(parents=True)
    for name in DEVICES:
        path = make(root / "dev" / name)
        path.chmod(0o660)
        os.chown(path, -1, GID)
    folder = add_toolkit(root, "8.1.RC1")
    home = tmp_path / "home"
    home.mkdir()
    return Machine(
        root=root,
        home=home,
        environ={"ASCEND_OPP_PATH": f"{folder}/opp"},
        user="HwHiAiUser",
        uid=USER,
        gids=frozenset([GID]),
        rights=False,
        sudo=False,
        python=(3, 10),
        arch="aarch64",
        run=lambda command: SMI if command[0] == "npu-smi" else None,
    )


def todo(machine: Machine) -> dict[str, str]:
    """What is to be done, by what was found."""
    found = setup_board.steps(machine)
    return {f"{s.topic}: {s.what}": s.do for s in found if s.level == "todo"}


def test_a_board_on_which_all_is_well(board: Machine, capsys: pytest.CaptureFixture[str]):
    """The output as a whole."""
    assert main([], board) == 0
    said = capsys.readouterr().out.replace(str(board.root), "")
    assert said.splitlines() == [
        "ok    image        Ubuntu 22.04.3 LTS, aarch64",
        "ok    driver       davinci0; version 24.1.rc3",
        "ok    group        HwHiAiUser may open the chip",
        "ok    CANN         CANN 8.1.RC1 (/usr/local/Ascend/ascend-toolkit/8.1.RC1)",
        "ok    kernels      for 310b, 8.1.RC1",
        "ok    environment  ASCEND_OPP_PATH is /usr/local/Ascend/ascend-toolkit/8.1.RC1/opp",
        "ok    Python       3.10",
        "ok    memory       11.4 GiB of 15.3 GiB are free, 0.0 GiB of swap",
        "ok    npu-smi      chip 0, 310B4: OK",
        "",
        "Nothing to do.",
    ]


def test_a_board_as_it_comes(
    board: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """An image with Python 3.9, CANN 7.0 and a user who is in no group."""
    root = tmp_path / "fresh"
    board.root.rename(root)
    (root / "usr/local/Ascend/ascend-toolkit/8.1.RC1").rename(root / "gone")
    add_toolkit(root, "7.0.0")
    make(root / "usr/bin/python3.10")
    fresh = board._replace(root=root, environ={}, user="lin", gids=frozenset(), python=(3, 9))
    assert main([], fresh) == 1
    said = capsys.readouterr().out.replace(str(root), "").replace(str(tmp_path), "")
    devices = "/dev/davinci0 /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc"
    place, driver = "/usr/local/Ascend/ascend-toolkit", "/usr/local/Ascend/driver/lib64"
    file = "/home/.config/umbel/cann.env"
    assert said.splitlines()[1:] == [
        "ok    driver       davinci0; version 24.1.rc3",
        f"todo  group        lin may not open {devices}",
        f"todo  CANN         CANN 7.0.0 ({place}/7.0.0) is too old",
        "todo  environment  ASCEND_OPP_PATH is not set",
        "todo  Python       3.9 is too old: Umbel needs 3.10 or newer",
        "ok    memory       11.4 GiB of 15.3 GiB are free, 0.0 GiB of swap",
        "ok    npu-smi      chip 0, 310B4: OK",
        "",
        "To do, in this order:",
        "1. group: sudo usermod -aG HwHiAiUser lin, and log in again",
        "2. CANN: install the toolkit and the kernels for 310b: one version, 8.0 or newer; the "
        "driver may stay as it is",
        f"3. environment: write {file}, then . {file}",
        "4. Python: /usr/bin/python3.10 -m venv ~/umbel && . ~/umbel/bin/activate",
        "",
        "`umbel-cann-setup --apply` does 3:",
        f"{file}:",
        "# Written by umbel-cann-setup, which may write it again.",
        f". {place}/set_env.sh",
        f"export LD_LIBRARY_PATH={driver}:{driver}/common"
        "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}",
        "",
    ]


def test_without_a_driver(board: Machine):
    for path in (board.root / "dev").iterdir():
        path.unlink()
    off = board._replace(run=lambda _: None)
    found = todo(off)
    assert [what.partition(":")[0] for what in found] == ["driver", "npu-smi"]
    assert "boot again" in found["driver: there is no /dev/davinci0: no chip, or no driver"]
    make(board.root / ".dockerenv")
    inside = todo(off)["driver: there is no /dev/davinci0: no chip, or no driver"]
    assert "--device /dev/davinci0 --device /dev/davinci_manager" in inside


def test_half_a_driver(board: Machine):
    (board.root / "dev/devmm_svm").unlink()
    assert list(todo(board)) == ["driver: /dev/ lacks devmm_svm"]


@pytest.mark.parametrize("stub", sorted(toolkit.STUBS))
def test_a_stub_folder(board: Machine, stub: str):
    environ = {**board.environ, "LD_LIBRARY_PATH": f"/a/lib64:/b/runtime/lib64/{stub}:"}
    (do,) = todo(board._replace(environ=environ)).values()
    assert do.endswith(f"/b/runtime/lib64/{stub}")


def test_two_toolkits(board: Machine, capsys: pytest.CaptureFixture[str]):
    """The one that the environment names is used, and the other told."""
    new = add_toolkit(board.root, "8.3.RC1")
    old = new.parent / "8.1.RC1"
    (what,) = todo(board)
    assert what.startswith("environment: ASCEND_OPP_PATH is")
    for used in (old, new):
        names = {"ASCEND_TOOLKIT_HOME": str(used), "ASCEND_OPP_PATH": f"{used}/opp"}
        chosen = board._replace(environ=names)
        assert main([], chosen) == 0
        said = capsys.readouterr().out
        assert f"ok    CANN         CANN {used.name} (" in said
        other = new.name if used == old else old.name
        assert f"note  CANN         also here: {other}\n" in said


@pytest.mark.parametrize(
    ("version", "old"),
    [("7.0.0", True), ("7.3.0", True), ("8.0.0", False), ("8.5.0", False), ("10.0", False)],
)
def test_how_old_a_toolkit_may_be(board: Machine, version: str, old: bool):
    folder = add_toolkit(board.root, version)
    names = {"ASCEND_TOOLKIT_HOME": str(folder), "ASCEND_OPP_PATH": f"{folder}/opp"}
    found = todo(board._replace(environ=names))
    assert any("too old" in what for what in found) is old
    assert bool(found) is old


def test_what_of_a_toolkit_is_missing(board: Machine):
    (folder,) = (board.root / "usr/local/Ascend/ascend-toolkit").glob("8*")
    for name in ("libnnopbase.so", "libopapi.so"):
        (folder / "lib64" / name).unlink()
    (what,) = todo(board)
    assert what.startswith("CANN: libnnopbase.so, libopapi.so not found")


def test_kernels(board: Machine):
    """Those of the chip, of the toolkit's version; a folder alone is none."""
    (folder,) = (board.root / "usr/local/Ascend/ascend-toolkit").glob("8*")
    other = board._replace(run=lambda _: SMI.replace("310B4 ", "310P3 "))
    assert "kernels: for 310p are missing: 310b" in todo(other)
    assert "Ascend-cann-kernels-310p_8.1.RC1_linux-aarch64.run" in str(todo(other))
    make(folder / "opp_kernel/version.info", "version_dir=8.0.0\n")
    assert "kernels: of 8.0.0 do not fit the toolkit's 8.1.RC1" in todo(board)
    chip = folder / KERNELS / "ascend310b"
    (chip / "mat_mul").rename(chip / "ops_oam")
    assert "kernels: for 310b are missing: none" in todo(board)
    assert "kernels: for any chip are missing: none" in todo(board._replace(run=lambda _: None))


@pytest.mark.parametrize(
    ("name", "family"),
    [("310B4", "310b"), ("310P3", "310p"), ("910B3", "910b"), ("910_9392", "910_93")],
)
def test_whose_kernels_a_chip_wants(name: str, family: str):
    assert setup_board._family(name) == family


def test_who_may_open_the_chip(board: Machine):
    """Membership of the group; never a device that is open to everybody."""
    lin = board._replace(user="lin", gids=frozenset())
    (do,) = todo(lin).values()
    assert do == "sudo usermod -aG HwHiAiUser lin, and log in again"
    make(board.root / "etc/group", f"HwHiAiUser:x:{GID}:HwHiAiUser,lin\n")
    assert list(todo(lin).values()) == ["log in again"]
    for path in (board.root / "dev").iterdir():
        path.chmod(0o600)
    (do,) = todo(board).values()
    assert do.startswith("sudo chmod 660 ")
    for path in (board.root / "dev").iterdir():
        path.chmod(0o666)
    assert list(todo(board)) == ["group: every user may open the chip: its group is enough"]
    make(board.root / "etc/group", "")
    for path in (board.root / "dev").iterdir():
        path.chmod(0o660)
    (do,) = todo(lin).values()
    assert do.startswith("sudo chgrp HwHiAiUser ")
    assert todo(board._replace(uid=0, gids=frozenset())) == {}
    assert todo(board._replace(uid=os.getuid(), gids=frozenset())) == {}


def test_nothing_is_ever_opened_to_everybody():
    text = FILE.read_text()
    assert "666" not in text
    assert "777" not in text


def test_apply_as_root_adds_the_user(board: Machine, capsys: pytest.CaptureFixture[str]):
    """Through sudo: the user's group, and no file of theirs."""
    called: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str | None:
        if command[0] == "usermod":
            called.append(command)
            make(board.root / "etc/group", f"HwHiAiUser:x:{GID}:lin\n")
            return ""
        return SMI

    lin = board._replace(
        user="lin", gids=frozenset(), rights=True, sudo=True, home=None, environ={}, run=run
    )
    assert main(["--apply"], lin) == 1
    said = capsys.readouterr().out
    assert called == [["usermod", "-aG", "HwHiAiUser", "lin"]]
    assert "done: lin is in the group HwHiAiUser: log in again\n" in said
    assert "1. group: log in again\n" in said
    assert "run this without sudo" in said
    main(["--apply"], lin)
    assert len(called) == 1


def test_apply_says_what_fails(board: Machine, capsys: pytest.CaptureFixture[str]):
    lin = board._replace(user="lin", gids=frozenset(), rights=True)
    assert main(["--apply"], lin) == 1
    said = capsys.readouterr().out
    assert "failed: group: usermod -aG HwHiAiUser lin failed\n" in said


def test_apply_writes_the_environment_once(board: Machine, capsys: pytest.CaptureFixture[str]):
    """It is shown before; a shell that reads it has what CANN needs; again changes nothing."""
    bare = board._replace(environ={})
    file = board.home / ".config/umbel/cann.env"
    assert main([], bare) == 1
    assert not file.exists()
    shown = capsys.readouterr().out
    assert main(["--apply"], bare) == 1
    said = capsys.readouterr().out
    assert file.read_text() in shown
    assert file.read_text() in said.partition("done: wrote")[0]
    assert f"1. environment: . {file}   and put that line" in said
    before = file.stat()
    assert main(["--apply"], bare) == 1
    assert "done" not in capsys.readouterr().out
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [p.name for p in file.parent.iterdir()] == ["cann.env"]
    sourced = 'set -eu; . "$0"; echo "$ASCEND_OPP_PATH"; echo "$LD_LIBRARY_PATH"'
    done = subprocess.run(["sh", "-c", sourced, str(file)], capture_output=True, text=True)
    operators, libraries = done.stdout.splitlines()
    assert libraries.startswith(str(board.root / "usr/local/Ascend/driver/lib64"))
    assert todo(board._replace(environ={"ASCEND_OPP_PATH": operators})) == {}


def test_a_file_of_ours_is_renewed(board: Machine):
    """Another toolkit, other lines."""
    file = make(board.home / ".config/umbel/cann.env", f"{setup_board.MARK}. /old/set_env.sh\n")
    assert main(["--apply"], board._replace(environ={})) == 1
    assert "/old/" not in file.read_text()


@pytest.mark.parametrize("what", ["text", "folder", "link"])
def test_a_file_of_the_users_own_stays(
    board: Machine, what: str, capsys: pytest.CaptureFixture[str]
):
    file = board.home / ".config/umbel/cann.env"
    file.parent.mkdir(parents=True)
    if what == "text":
        file.write_text("export MINE=1\n")
    elif what == "folder":
        file.mkdir()
    else:
        file.symlink_to("nowhere")
    kind = os.lstat(file).st_mode
    assert main(["--apply"], board._replace(environ={})) == 1
    said = capsys.readouterr().out
    assert "done" not in said
    assert ("a file of your own" if what == "text" else "cannot be read") in said
    assert os.lstat(file).st_mode == kind
    assert what != "text" or file.read_text() == "export MINE=1\n"


def test_a_home_that_cannot_be_written(board: Machine, capsys: pytest.CaptureFixture[str]):
    """A file stands where its folder should be: even root cannot write below it."""
    make(board.home / ".config", "not a folder")
    assert main(["--apply"], board._replace(environ={})) == 1
    assert "failed: environment: " in capsys.readouterr().out
    homeless = board._replace(environ={}, home=None)
    (do,) = todo(homeless).values()
    assert do.startswith(". ")
    assert "without sudo, with a home" in do


def test_a_write_that_fails_leaves_nothing(
    board: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        setup_board.write(tmp_path / "x/cann.env", "text")
    assert list((tmp_path / "x").iterdir()) == []


def test_the_other_home_of_settings(board: Machine, tmp_path: Path):
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "my settings")}
    main(["--apply"], board._replace(environ=environ))
    assert (tmp_path / "my settings/umbel/cann.env").is_file()
    (do,) = todo(board._replace(environ=environ)).values()
    assert do.startswith(f". '{tmp_path}/my settings/umbel/cann.env' ")


def test_a_toolkit_without_a_script(board: Machine):
    (board.root / "usr/local/Ascend/ascend-toolkit/set_env.sh").unlink()
    assert "has no set_env.sh" in str(todo(board._replace(environ={})))


def test_an_operators_path_that_leads_nowhere(board: Machine):
    gone = board._replace(environ={"ASCEND_OPP_PATH": "/gone"})
    assert list(todo(gone)) == ["environment: ASCEND_OPP_PATH leads nowhere"]


def test_python(board: Machine):
    """Another one that is here, conda, or what to install."""
    old = board._replace(python=(3, 9))
    assert "Miniforge" in str(todo(old))
    conda = make(board.root / "usr/local/miniconda3/bin/conda")
    assert list(todo(old).values()) == [
        f"{conda} create -n umbel python=3.11 && conda activate umbel"
    ]
    make(board.root / "usr/local/bin/python3.12")
    assert "python3.12 -m venv" in str(todo(old))


def test_memory(board: Machine, capsys: pytest.CaptureFixture[str]):
    file = board.root / "proc/meminfo"
    make(file, "MemTotal: 7900000 kB\nMemAvailable: 900000 kB\nSwapTotal: 0 kB\n")
    assert list(todo(board)) == ["memory: 0.9 GiB of 7.5 GiB are free, 0.0 GiB of swap"]
    make(file, "MemTotal: 7900000 kB\nMemAvailable: 5000000 kB\nSwapTotal: 0 kB\n")
    assert main([], board) == 0
    assert "note  memory" in capsys.readouterr().out
    file.unlink()
    assert todo(board) == {}


def test_a_chip_that_is_not_well(board: Machine):
    ill = board._replace(run=lambda _: SMI.replace("| OK  ", "| Alarm"))
    assert list(todo(ill)) == ["npu-smi: chip 0, 310B4: Alarm"]
    assert "npu-smi info -t health -i 0" in str(todo(ill))
    assert any(w.startswith("npu-smi: it") for w in todo(board._replace(run=lambda _: "junk")))


def test_an_image_of_another_kind(board: Machine):
    assert "image: Ubuntu 22.04.3 LTS, armv7l" in todo(board._replace(arch="armv7l"))


def test_the_simulator_is_told(board: Machine, capsys: pytest.CaptureFixture[str]):
    environ = {**board.environ, "UMBEL_CANN_SIMULATOR": "310B"}
    assert main([], board._replace(environ=environ)) == 0
    assert "unset UMBEL_CANN_SIMULATOR" in capsys.readouterr().out


def test_what_it_shares_with_the_plugin(monkeypatch: pytest.MonkeyPatch):
    """It imports nothing of it, so that it runs without: the figures are the same."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert setup_board.VARIABLES == toolkit.VARIABLES
    assert setup_board.INSTALLED == toolkit.INSTALLED
    assert setup_board.STUBS == toolkit.STUBS
    assert setup_board.RELEASE == toolkit._RELEASE.pattern
    assert setup_board.ALONE == toolkit._ALONE.pattern
    assert setup_board.MANAGERS == findings.MANAGERS
    root, machine = Path("/x"), platform.machine()
    assert list(toolkit.Toolkit(root).folders()) == setup_board.folders(root, machine)
    assert setup_board.OLDEST == findings.OLDEST
    assert {*setup_board.LIBRARIES, *setup_board.OPERATORS} <= {*acl.LIBRARIES}


@pytest.mark.parametrize("fault", ["node", "manager", "toolkit", "old", "library", "stub"])
def test_it_finds_what_the_doctor_finds(
    board: Machine, fault: str, monkeypatch: pytest.MonkeyPatch
):
    """Whatever is an error or a warning there is something to do here."""
    (folder,) = (board.root / "usr/local/Ascend/ascend-toolkit").glob("8*")
    environ = dict(board.environ)
    if fault in ("node", "manager"):
        (board.root / "dev" / ("davinci0" if fault == "node" else "hisi_hdc")).unlink()
    elif fault == "toolkit":
        (board.root / "usr/local/Ascend/ascend-toolkit").rename(board.root / "gone")
    elif fault == "old":
        (folder / "aarch64-linux/ascend_toolkit_install.info").unlink()
        cfg = "# version: 1.0\nruntime_running_version=[7.0.0.5.242:7.0.0]\n"
        make(folder / "version.cfg", cfg)
    elif fault == "library":
        (folder / "lib64/libascendcl.so").unlink()
    else:
        environ["LD_LIBRARY_PATH"] = "/x/stub"
    for name in ("ASCEND_OPP_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, environ.get(name, ""))
    found = [f for f in findings.findings(board.root) if f.level in ("error", "warning")]
    assert found
    assert todo(board._replace(environ=environ))


# who runs it


def test_the_user_who_typed_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    plain = setup_board.here()
    assert (plain.uid, plain.home, plain.sudo) == (os.getuid(), tmp_path, False)
    assert (plain.python, plain.root) == (sys.version_info[:2], Path("/"))
    assert plain.gids == frozenset(os.getgroups())


def test_the_user_behind_sudo(monkeypatch: pytest.MonkeyPatch):
    """Their groups count, and no file of theirs is root's to write."""
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "nobody")
    found = setup_board.here()
    assert (found.user, found.uid, found.home) == ("nobody", nobody.pw_uid, None)
    assert (found.rights, found.sudo) == (True, True)
    assert nobody.pw_gid in found.gids


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch):
    """As in a container."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 98765)
    found = setup_board.here()
    assert (found.user, found.home, found.rights) == ("98765", None, False)


# how it runs


def test_it_can_be_read_by_an_old_python():
    """Its syntax is that of 3.9, and it imports the standard library alone."""
    tree = ast.parse(FILE.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        + [alias.name for alias in node.names if isinstance(node, ast.Import)]
    }
    assert imported <= sys.stdlib_module_names
    # a union of types between bars would be computed outside of annotations
    assert "from __future__ import annotations" in FILE.read_text()


@pytest.mark.parametrize("way", ["file", "module"])
def test_it_runs_from_a_checkout_and_installed(way: str, tmp_path: Path):
    """By its path it needs nothing but an interpreter: no umbel, no site-packages."""
    command = [sys.executable, "-S", str(FILE)] if way == "file" else [sys.executable]
    command += [] if way == "file" else ["-m", "umbel_cann.setup_board"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("ASCEND", "PYTHON"))}
    if way == "module":
        environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        command, capture_output=True, text=True, env={**environ, "HOME": str(tmp_path)}
    )
    assert done.returncode in (0, 1)
    assert done.stderr == ""
    assert "image" in done.stdout
    assert list(tmp_path.iterdir()) == []

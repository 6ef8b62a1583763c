"""npu-smi's tables, and what the doctor says of machines that are made up of files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from umbel_cann import findings, smi
from umbel_cann.nodes import nodes, visible

DATA = Path(__file__).parent / "data"
BOARD = (DATA / "npu-smi-board.txt").read_text()
CARDS = (DATA / "npu-smi-cards.txt").read_text()


def test_a_board() -> None:
    (chip,) = smi.parse(BOARD)
    assert chip == {
        "npu": 0,
        "name": "310B4",
        "health": "OK",
        "power_w": 7.2,
        "temperature_c": 37,
        "hugepages_used": 15,
        "hugepages_total": 15,
        "chip": 0,
        "utilisation_percent": 0,
        "memory_ddr_used": 1797 << 20,
        "memory_ddr_total": 3513 << 20,
    }


def test_cards() -> None:
    first, second = smi.parse(CARDS)
    assert (first["memory_hbm_used"], first["memory_hbm_total"]) == (3161 << 20, 65536 << 20)
    assert (first["bus"], first["utilisation_percent"]) == ("0000:C1:00.0", 12)
    assert (second["npu"], second["health"], second["temperature_c"]) == (1, "Warning", -3)
    assert "power_w" not in second


@pytest.mark.parametrize("text", ["", "nonsense", BOARD[:500], "| NPU | x |\n" * 3])
def test_what_is_no_table(text: str) -> None:
    assert smi.parse(text) == []


def test_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toolkit's own before any other; one that fails says nothing."""
    program = tmp_path / "bin/npu-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = info ] && echo "| $0 |"\n')
    program.chmod(0o755)
    assert smi.run(tmp_path) == f"| {program} |\n"
    program.write_text("#!/bin/sh\necho half; exit 1\n")
    assert smi.run(tmp_path) == ""
    program.write_text("no program")
    assert smi.run(tmp_path) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert smi.run() == ""


def told(root: Path) -> dict[str, str]:
    """Each finding, and what to do."""
    return {f"{f.level}: {f.what}": f.do for f in findings.findings(root)}


def machine(root: Path, mode: int = 0o660) -> None:
    (root / "dev").mkdir()
    for name in ("davinci0", "davinci10", "davinci2", *findings.MANAGERS):
        (root / "dev" / name).touch()
        (root / "dev" / name).chmod(mode)
    driver = root / "usr/local/Ascend/driver"
    driver.mkdir(parents=True)
    (driver / "version.info").write_text("Version=24.1.rc3\n")


def test_nothing_here(tmp_path: Path) -> None:
    assert told(tmp_path) == {"note: no Ascend NPU, and no CANN toolkit": ""}


def test_a_good_machine(
    tmp_path: Path, toolkit_at: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path)
    root = toolkit_at()
    (root / "opp").mkdir()
    monkeypatch.setenv("ASCEND_OPP_PATH", str(root / "opp"))
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,2,10")
    monkeypatch.setattr(smi, "run", lambda *_: CARDS)
    found = told(tmp_path)
    assert "ok: 3 device nodes: davinci0, davinci2, davinci10" in found
    assert "ok: driver 24.1.rc3" in found
    assert f"ok: CANN 8.1.RC1 ({root})" in found
    assert "ok: its libraries are there" in found
    assert "ok: chip 0 910B3: OK" in found
    assert "ok: chip 0 910B3 has 62375 of 65536 MB free" in found
    bad = found["error: chip 1 910B3: Warning"]
    assert bad.startswith("`npu-smi info -t health -i 1` says more")
    assert any("not tried yet" in what and "`umbel cann probe`" in what for what in found)
    assert [what for what in found if what.startswith("warning")] == []


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Membership of the group, never a device that is open to everybody."""
    machine(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    advice = [do for what, do in told(tmp_path).items() if "cannot be opened" in what]
    assert len(advice) == 6
    assert all("group" in do or "usermod" in do for do in advice)
    assert not any("666" in do for do in advice)
    monkeypatch.undo()
    for path in (tmp_path / "dev").iterdir():
        path.chmod(0o666)
    opened = [do for what, do in told(tmp_path).items() if "open to every user" in what]
    assert len(opened) == 6
    assert all(do.startswith("sudo chmod 660") for do in opened)


def test_what_is_missing(
    tmp_path: Path, toolkit_at: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit_at("ascend-toolkit/7.0.1", names=("libascendcl.so",))
    monkeypatch.setattr(smi, "run", lambda *_: "")
    found = told(tmp_path)
    assert "error: CANN is here, but no chip: there is no /dev/davinci0" in found
    assert any("7.0.1 is older" in what for what in found)
    assert any("libnnopbase.so, libopapi.so not found" in what for what in found)
    assert any("ASCEND_OPP_PATH and ASCEND_HOME_PATH are not set" in what for what in found)
    assert any("npu-smi is not here" in what for what in found)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/a/lib64:/b/runtime/lib64/stub")
    assert any("stub libraries" in what for what in told(tmp_path))
    machine(tmp_path)
    (tmp_path / "dev/devmm_svm").unlink()
    found = told(tmp_path)
    assert any("/dev/devmm_svm is missing" in what for what in found)


def test_environment(
    tmp_path: Path, toolkit_at: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that lead nowhere, hide chips, or mix a log into a text."""
    machine(tmp_path)
    toolkit_at()
    gone = str(tmp_path / "gone")
    monkeypatch.setattr(smi, "run", lambda *_: "")
    monkeypatch.setenv("ASCEND_HOME_PATH", gone)
    for named in ("0,1,2,3", ""):
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", named)
        found = told(tmp_path)
        what = f"error: ASCEND_RT_VISIBLE_DEVICES={named} does not fit the 3 chips"
        assert any(line.startswith(what) for line in found)
    what = f"error: ASCEND_HOME_PATH names a folder that is not there: {gone}"
    assert "set_env.sh" in found[what]
    for value, count in (("0", 0), ("1", 1)):
        monkeypatch.setenv("ASCEND_SLOG_PRINT_TO_STDOUT", value)
        assert sum("ASCEND_SLOG_PRINT_TO_STDOUT is set" in w for w in told(tmp_path)) == count


def test_a_chip_that_others_use(
    tmp_path: Path, toolkit_at: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little memory, and much to do: each with the command that tells more."""
    machine(tmp_path)
    toolkit_at()
    busy = BOARD.replace("1797 / 3513", "3300 / 3513").replace(
        "| 0            3300", "| 97           3300"
    )
    monkeypatch.setattr(smi, "run", lambda *_: busy)
    found = told(tmp_path)
    assert (
        "npu-smi info -t memory -i 0" in found["warning: chip 0 310B4 has 213 of 3513 MB free"]
    )
    (told_busy,) = (do for what, do in found.items() if "is busy (97 %)" in what)
    assert "npu-smi info -t usages -i 0" in told_busy


def test_no_toolkit(tmp_path: Path) -> None:
    machine(tmp_path)
    assert any("there is a chip, but no CANN" in what for what in told(tmp_path))


def test_devices_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chip's node is one; those that the runtime hides do not count."""
    import umbel_cann

    machine(tmp_path)
    monkeypatch.setattr(umbel_cann, "toolkit", lambda: None)
    monkeypatch.setattr(umbel_cann, "nodes", lambda: nodes(tmp_path))
    names = [device.name for device in umbel_cann.devices()]
    assert names == ["cann:0", "cann:1", "cann:2"]
    assert not any(device.simulated for device in umbel_cann.devices())
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2,10")
    assert len(umbel_cann.devices()) == 2


@pytest.mark.parametrize(
    ("value", "names"),
    [(None, "0 2 10"), ("10,0", "10 0"), ("2", "2"), ("", ""), ("9", ""), ("0,9,2", "0")],
)
def test_visible_chips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, names: str
) -> None:
    """As the runtime counts them, up to one that is not there."""
    machine(tmp_path)
    if value is not None:
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", value)
    found = visible(nodes(tmp_path))
    assert " ".join(path.name.removeprefix("davinci") for path in found) == names


def test_memory_as_the_driver_tells_it(tmp_path: Path) -> None:
    """Of the chip that is asked for; where there is no such file, nothing."""
    (tmp_path / "ascendmm1").mkdir()
    (tmp_path / "ascendmm1/mem_info").write_text("Total: 3683647488\nused = 12345\nfree 99\n")
    told = {"total": 3683647488, "used": 12345, "free": 99}
    expected = {f"driver_memory_{name}": n for name, n in told.items()}
    assert smi.driver_memory(1, tmp_path) == expected
    assert smi.driver_memory(0, tmp_path) == {}

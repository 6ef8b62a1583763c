"""`umbel ane ...`, as users type it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import umbel
from umbel import adapters, plugins
from umbel.cli import main
from umbel.errors import ModelFormatError
from umbel_ane.adapters import convert
from umbel_ane.drivers import choose
from umbel_ane.mil.blob import write_blob

ORACLES = Path(__file__).parents[3] / "core" / "tests" / "data" / "oracles"
STRICT = "orion-m4-macos15"
STORY, GPT2 = ORACLES / "stories260K.gguf", ORACLES / "gpt2.gguf"


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("UMBEL_ANE_SIMULATOR", STRICT)
    plugins.get().close()
    yield
    plugins.get().close()


def said(capsys, *words: object, code: int = 0) -> str:
    plugins.get().close()
    assert main([str(word) for word in words]) == code
    return capsys.readouterr().out


def staged(folder: Path, text: bytes, weights: Mapping[str, bytes]) -> Path:
    """A program's text, with its weight files beside it."""
    for path, data in weights.items():
        file = folder / path.removeprefix("@model_path/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (folder / "model.mil").write_bytes(text)
    return folder / "model.mil"


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> tuple[Path, Path]:
    """The decode programs of gpt2 at two lengths of context."""
    from umbel_ane import _open, explain

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMBEL_ANE_SIMULATOR", STRICT)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        plugins.get().close()
        plugins.get().open(plugins.get().find("ane:0"), {})
        _open["ane:0"].splits.planning = True
        with umbel.load(GPT2, device="ane:0", ctx=64) as model:
            steps = list(explain.steps(model, _open["ane:0"], "ane"))
            found = [step.programs[0] for step in (steps[0], steps[-1])]
            texts = [(p.text, p.weights) for p in found]
        plugins.get().close()
    one, two = (staged(tmp_path_factory.mktemp("mil"), *text) for text in texts)
    return one, two


def test_explain_tells_programs_and_what_stays(capsys):
    told = said(capsys, "ane", "explain", STORY, "--ctx", 512)
    assert "decode of 1 in 256: 1 program" in told
    assert "prefill of 32 in 512: 1 program" in told
    assert "its angles are prepared by the host" in told
    assert "compiles, once for this user, and " in told
    assert "a process may compile 119" in told


def test_explain_tells_of_some_prompts_alone(capsys):
    told = said(capsys, "ane", "explain", STORY, "--ctx", 512, "--prompts", "20,33,500")
    steps = [line for line in told.splitlines() if line.startswith(("decode", "prefill"))]
    assert [line.partition(":")[0] for line in steps] == [
        "prefill of 32 in 512",
        "prefill of 64 in 512",
        "prefill of 512 in 512",
    ]
    assert main(["ane", "explain", str(STORY), "--prompts", "0"]) == 2
    assert "a prompt has one token or more" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["host", "ane"])
def test_explain_tells_what_was_chosen(capsys, where):
    """Attention can run on either side; figures say why it is this one."""
    words = ("ane", "explain", STORY, "--ctx", 256, "--prompts", 1)
    (step,) = json.loads(said(capsys, *words, "-O", f"ane.attention={where}", "--json"))[
        "steps"
    ]
    (choice,) = step["choices"]  # the head is small, and no question
    assert (choice["part"], choice["device"]) == ("attention", f"{where}:0")
    assert min(choice["here_ms"], choice["host_ms"]) > 0
    carried = [port["carries"] for p in step["programs"] for port in p["outputs"]]
    news = sum("new rows of the state" in text for text in carried)
    assert news == (0 if where == "host" else 10)  # k and v of five layers


def test_explain_tells_of_whole_texts(capsys):
    """An encoder has a program for each size of text, and no context."""
    told = said(capsys, "ane", "explain", ORACLES / "bert.gguf")
    assert "prefill of 16 in 16: 1 program" in told


def test_explain_compiles_nothing(capsys):
    before = choose.driver().compiles
    found = json.loads(said(capsys, "ane", "explain", GPT2, "--ctx", 64, "--json"))
    assert choose.driver().compiles == before
    for step in found["steps"]:
        assert [p["weight_bytes"] > 0 and p["ms"] > 0 for p in step["programs"]] == [True]


def test_mil_sums_up(capsys, programs):
    told = said(capsys, "ane", "mil", programs[0])
    assert "main<ios18>" in told
    assert "conv: " in told
    assert "weights: " in told


def test_diff(capsys, programs, tmp_path):
    one, two = programs
    assert said(capsys, "ane", "diff", one, one) == "they mean the same\n"
    assert "\n  a: " in said(capsys, "ane", "diff", one, two, code=1)
    alone = tmp_path / "model.mil"
    alone.write_bytes(one.read_bytes())
    assert "not compared" in said(capsys, "ane", "diff", one, alone)


def test_diff_looks_into_weight_files(capsys, programs, tmp_path):
    one = programs[0]
    for file in one.parent.rglob("*.bin"):
        data = bytearray(file.read_bytes())
        data[200] ^= 0x11
        copy = tmp_path / file.relative_to(one.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)
    (tmp_path / "model.mil").write_bytes(one.read_bytes())
    said(capsys, "ane", "diff", one, tmp_path / "model.mil", code=1)


@pytest.mark.parametrize("command", ["mil", "diff"])
def test_what_is_no_mil_is_told(capsys, tmp_path, command):
    plugins.get().close()
    file = tmp_path / "a.mil"
    file.write_bytes(b"program(1.3)\n{ func main")
    assert main(["ane", command, *[str(file)] * (1 + (command == "diff"))]) == 2
    assert "line 2" in capsys.readouterr().err
    assert main(["ane", "mil", str(tmp_path / "none")]) == 2
    assert "the file cannot be read" in capsys.readouterr().err


def test_cache_lists_and_clears(capsys):
    said(capsys, "run", STORY, "Once", "-n", 2, "--ctx", 64, "--device", "ane:0")
    assert len(said(capsys, "ane", "cache", "list").splitlines()) >= 1
    assert "dropped" in said(capsys, "ane", "cache", "clear")
    assert said(capsys, "ane", "cache", "list") == "nothing is compiled\n"


def test_another_device_is_refused(capsys):
    plugins.get().close()
    assert main(["ane", "explain", str(STORY), "--device", "host"]) == 2
    assert "this is no Neural Engine" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_export_writes_one_package(capsys, tmp_path):
    pytest.importorskip("coremltools")
    to = tmp_path / "model.mlpackage"
    words = ("ane", "export", GPT2, "--ctx", 64, "--ubatch", 4, "--to", to)
    assert "2 functions" in said(capsys, *words)
    assert (to / "Manifest.json").is_file()


@pytest.mark.parametrize("made", ["folder", "file", "link"])
def test_export_replaces_packages_alone(capsys, tmp_path, made):
    """What else stands under that name stays as it is."""
    pytest.importorskip("coremltools")
    to, kept = tmp_path / "thesis.mlpackage", tmp_path / "kept"
    kept.mkdir()
    (kept / "a").write_text("mine")
    if made == "folder":
        kept.rename(to)
    elif made == "file":
        to.write_text("mine")
    else:
        to.symlink_to(kept)
    plugins.get().close()
    assert main(["ane", "export", str(GPT2), "--to", str(to)]) == 2
    assert "is no Core ML package" in capsys.readouterr().err
    assert (to if made == "file" else to / "a").read_text() == "mine"


def test_report_is_markdown(capsys):
    assert said(capsys, "ane", "report").startswith("# Neural Engine report")


# adapters of Orion's


def orion(folder: Path, rank: int, alpha: float, sizes: dict[str, tuple[int, int]]) -> Path:
    """An adapter folder with random values; sizes are (out, in) by target."""
    rng = np.random.default_rng(rank)
    folder.mkdir()
    lines = (f"rank={rank}", f"alpha={alpha}", f"targets={','.join(sizes)}")
    (folder / "config.txt").write_text("\n".join(lines))
    for layer in range(2):
        place = folder / f"layer{layer}"
        place.mkdir()
        for target, (n_out, n_in) in sizes.items():
            for half, n in (("A", n_in), ("B", n_out)):
                values = rng.normal(size=n * rank).astype(np.float16) * np.float16(0.3)
                data, _ = write_blob([values])
                (place / f"lora_{target}_{half}.bin").write_bytes(data)
    return folder


def shape_of(model: Path, stem: str) -> tuple[int, int]:
    with umbel.gguf.open(model) as file:
        return file.tensors[f"{stem}.weight"].shape


@pytest.mark.parametrize("rank", [2, 8])
@pytest.mark.parametrize(
    ("name", "rows"), [("gpt2", (64, 64, 64)), ("phi3", (64, 32, 32))]
)  # of q, k and v in the matrix that joins them; phi3's heads share keys
def test_an_adapter_folder_does_what_its_numbers_say(tmp_path, name, rows, rank, capsys):
    """Against the weights with the product added: a joined matrix."""
    model = ORACLES / f"{name}.gguf"
    n_out, n_in = shape_of(model, "blk.0.attn_qkv")
    assert n_out == sum(rows)
    sizes = {"q": (rows[0], n_in), "v": (rows[2], n_in)}
    folder = orion(tmp_path / "orion", rank, 4.0, sizes)
    to = tmp_path / "made.gguf"
    assert "adapted" in said(capsys, "ane", "adapter", folder, model, "--to", to)
    with umbel.load(model, device="host", adapters=to) as made:
        a, b = adapters.read(to, made.runner.definition).factors["blk.0.attn_qkv"]
        ids = list(range(3, 11))
        changed, plain = made.logits(ids), made.logits(ids, adapters={})
    from umbel_ane.mil.blob import BlobFile

    def read(name: str, n: int) -> np.ndarray:
        data = (folder / "layer0" / name).read_bytes()
        return BlobFile(data).read(64).astype(np.float32).reshape(n, rank)

    got = np.split(b @ a, np.cumsum(rows)[:-1])
    for n, target, part in zip(rows, "qkv", got, strict=True):
        if target == "k":
            assert not part.any()
            continue
        one, two = read(f"lora_{target}_A.bin", n_in), read(f"lora_{target}_B.bin", n)
        np.testing.assert_allclose(part, 4.0 / rank * two @ one.T, rtol=1e-4, atol=1e-5)
    assert np.abs(changed - plain).max() > 1e-2


def test_an_adapter_of_another_model_is_refused(tmp_path):
    folder = orion(tmp_path / "orion", 2, 4.0, {"q": (8, 8)})
    with pytest.raises(ModelFormatError, match="another size"):
        convert(folder, STORY, tmp_path / "made.gguf")
    (folder / "layer1" / "lora_q_A.bin").unlink()
    assert not (tmp_path / "made.gguf").exists()
    n_out, n_in = shape_of(STORY, "blk.0.attn_q")
    folder = orion(tmp_path / "other", 2, 4.0, {"q": (n_out, n_in)})
    with pytest.raises(ModelFormatError, match="cannot be read"):
        convert(folder, STORY, tmp_path / "made.gguf")  # it has more layers than the folder


@pytest.mark.parametrize(
    "text", ["", "rank=0", "rank=x", "alpha=nan", "targets=q,z", "rank=8 alpha=-1"]
)
def test_a_config_that_cannot_be_used(tmp_path, text):
    folder = orion(tmp_path / "orion", 2, 4.0, {"q": (64, 64)})
    (folder / "config.txt").write_text(text or "rank=-1")
    with pytest.raises(ModelFormatError, match=r"cannot be used|another size"):
        convert(folder, STORY, tmp_path / "made.gguf")
    (folder / "config.txt").unlink()
    with pytest.raises(ModelFormatError, match="no adapter folder"):
        convert(folder, STORY, tmp_path / "made.gguf")


@pytest.mark.parametrize("how", ["empty", "short", "zeros", "float32"])
def test_a_broken_file_of_an_adapter_is_named(tmp_path, how):
    n_out, n_in = shape_of(STORY, "blk.0.attn_q")
    folder = orion(tmp_path / "orion", 2, 4.0, {"q": (n_out, n_in)})
    (folder / "layer²").mkdir()  # no number that counts
    file = folder / "layer1" / "lora_q_B.bin"
    data = file.read_bytes()
    broken = {"empty": b"", "short": data[:100], "zeros": bytes(len(data))}
    broken["float32"] = write_blob([np.zeros(n_out * 2, np.float32)])[0]
    file.write_bytes(broken[how])
    with pytest.raises(ModelFormatError, match="no weight file of float16") as caught:
        convert(folder, STORY, tmp_path / "made.gguf")
    assert caught.value.where == file
    assert not (tmp_path / "made.gguf").exists()


# what a second reader broke


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_report_names_no_user_and_no_place(tmp_path, monkeypatch):
    """Whatever errors say: a driver whose programs all fail to load."""
    from umbel_ane import report
    from umbel_ane.drivers.coreml import CoremlDriver

    def failing(package):
        raise RuntimeError(f"Error compiling model:\n file://{package}")

    monkeypatch.setenv("USER", "jane.doe")
    folder = tmp_path / "Users" / "jane.doe" / "Library"
    monkeypatch.setattr(choose, "driver", lambda kind: CoremlDriver(folder, failing))
    lines = list(report.report("coreml"))
    text = "\n".join(lines)
    assert "failed" in text
    assert "jane.doe" not in text
    assert str(tmp_path) not in text
    table = text[text.index("| experiment ") :].split("\n\n")[0].splitlines()
    assert all(
        line.startswith("| ") and line.endswith(" |") for line in table if line[1] != "-"
    )


@pytest.mark.parametrize("where", ["unwritable", "under a file"])
def test_where_no_package_can_be_written(capsys, tmp_path, where):
    """Before a model is loaded for nothing."""
    pytest.importorskip("coremltools")
    (tmp_path / "file").write_text("")
    to = {"unwritable": "/proc/x.mlpackage", "under a file": tmp_path / "file" / "x.mlpackage"}
    plugins.get().close()
    assert main(["ane", "export", str(GPT2), "--to", str(to[where])]) == 2
    err = capsys.readouterr().err
    assert "cannot be written there" in err
    assert "weights are converted" not in err


def test_an_export_that_ends_early_keeps_what_was_there(tmp_path, monkeypatch):
    """Ctrl-C and a full disk at any time; and two that write the same one."""
    from umbel_ane.coreml import CoremlError, export

    path = tmp_path / "x.mlpackage"

    def write(text):
        def made(folder):
            folder.mkdir()
            (folder / "Manifest.json").write_text(text)

        return made

    export._placed(path, write("one"))
    plain = Path.rename
    for error in (KeyboardInterrupt, OSError("full")):

        def failing(self: Path, target: Path, error: Any = error) -> Path:
            if self.name == target.name == path.name:
                raise error
            return plain(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", failing)
            with pytest.raises((KeyboardInterrupt, CoremlError)):
                export._placed(path, write("two"))
        assert (path / "Manifest.json").read_text() == "one"
    export._placed(path, write("three"))
    assert (path / "Manifest.json").read_text() == "three"
    assert [p.name for p in tmp_path.iterdir()] == ["x.mlpackage"]


def test_which_file_is_wrong_is_told(capsys, programs, tmp_path):
    bad = tmp_path / "bad.mil"
    bad.write_text('program("\x1b[2J")')
    plugins.get().close()
    assert main(["ane", "diff", str(programs[0]), str(bad)]) == 2
    err = capsys.readouterr().err
    assert f"{bad}, line 1" in err
    assert "\x1b" not in err
    (tmp_path / "copy").mkdir()
    copy = staged(tmp_path / "copy", programs[0].read_bytes(), {})
    for file in programs[0].parent.rglob("*.bin"):
        other = copy.parent / file.relative_to(programs[0].parent)
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(b"garbage")
    plugins.get().close()
    assert main(["ane", "diff", str(programs[0]), str(copy)]) == 2
    assert f"a weight file of {copy}: @model_path/" in capsys.readouterr().err


def test_what_is_not_defined_or_said_otherwise_differs(capsys, tmp_path):
    text = (
        "program(1.3)\n{{ func main<ios18>(tensor<fp16, [1, 4, 1, 16]> x){more} {{"
        ' tensor<fp16, [1, 4, 1, 16]> y = relu(x = x)[name = string("y")]; }} -> ({out}); }}'
    )
    shape = " [FlexibleShapeInformation = tuple<int32, int32>((1, {n}))]"
    files = []
    for n, (more, out) in enumerate([("", "q"), ("", "r"), (1, "y"), (7, "y")]):
        file = tmp_path / f"{n}.mil"
        said = shape.format(n=more) if more else ""
        file.write_text(text.format(more=said, out=out))
        files.append(file)
    assert "is not defined" in said_of(capsys, files[0], files[1])
    assert "FlexibleShapeInformation" in said_of(capsys, files[2], files[3])


def said_of(capsys, a, b):
    return said(capsys, "ane", "diff", a, b, code=1)

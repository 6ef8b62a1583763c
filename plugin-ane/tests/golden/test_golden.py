"""What the compiler writes for one layer of each architecture, against texts that are kept.

They are compared by what they mean; UMBEL_GOLDEN=write renews them. Weights are those of the
oracles; the hashes in the paths of their files are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import gguf
import pytest
from planned import compiled as of_step
from planned import planning, whole
from umbel_ane.compiler.programs import Compiled
from umbel_ane.mil.diff import differences
from umbel_ane.mil.parse import parse

HERE = Path(__file__).parent
MODELS = ("gpt2", "llama", "qwen2", "qwen3", "bert")
HASH = re.compile(r"@model_path/[^\"]*")
LINES = 250


def one_layer(source: Path, target: Path) -> None:
    """A model file with the first layer alone."""
    read = gguf.GGUFReader(source)
    arch = read.fields["general.architecture"].contents()
    made = gguf.GGUFWriter(target, arch)
    for key, field in read.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = 1 if key == f"{arch}.block_count" else field.contents()
        kind = field.types[0]
        part = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        made.add_key_value(key, value, kind, part)
    for tensor in read.tensors:
        if not tensor.name.startswith("blk.") or tensor.name.startswith("blk.0."):
            made.add_tensor(tensor.name, tensor.data)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def compiled(oracles: Path, folder: Path, name: str) -> Compiled:
    """Of one token; of an encoder a text of 16."""
    path = folder / f"{name}.gguf"
    one_layer(oracles / f"{name}.gguf", path)
    with planning(path, "orion-m4-macos15", ctx=64, ubatch=16) as (model, opened):
        shape = whole(model, 16) if model.runner.encodes else model.runner.usual[0]
        (program,) = of_step(model, opened, shape)
        assert program.text
        return program


def named(text: bytes) -> str:
    return HASH.sub("@model_path/weights.bin", text.decode())


@pytest.mark.parametrize("name", MODELS)
def test_one_layer(oracles: Path, tmp_path: Path, name: str) -> None:
    now = named(compiled(oracles, tmp_path, name).text)
    file = HERE / f"{name}.mil"
    if os.environ.get("UMBEL_GOLDEN") == "write":
        file.write_text(now, "utf-8")
    kept = file.read_text("utf-8")
    assert kept.count("\n") < LINES
    found = [str(d) for d in differences(parse(kept), parse(now))]
    assert found == [], f"is it meant so? UMBEL_GOLDEN=write renews {file.name}"

"""The operators' prototypes against the file that the plugin's are compared with, too."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from os import environ
from pathlib import Path
from typing import Any

import umbel_cann_simulator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NATIVE = Path(__file__).parents[1] / "src/umbel_cann_simulator/native"
ABI: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "abi.toml").read_text())
ONE_PHASE = ("CalculateMatmulWeightSize", "CalculateMatmulWeightSizeV2")


def types(arguments: str) -> list[str]:
    """`const aclTensor *self, int64_t dim` as ["aclTensor*", "int64_t"]."""
    found = []
    for argument in arguments.split(","):
        words = re.findall(r"\w+", argument)
        words = [word for word in words if word not in ("const", "_Bool")]
        kind = "bool" if "_Bool" in argument else words[0]
        found.append(kind + "*" * argument.count("*"))
    return found


@cache
def prototypes() -> dict[str, list[str]]:
    """Of all operators, as the compiler sees them."""
    compiler = shlex.split(environ.get("CC", "")) or [shutil.which("cc") or "gcc"]
    found = {}
    for source in sorted(NATIVE.glob("op*.c")):
        command = [*compiler, "-std=c11", "-D_GNU_SOURCE", "-E", "-P", str(source)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, arguments in re.findall(r"aclnnStatus aclnn(\w+)\(([^()]*)\)", text):
            found[name] = types(arguments)
    del found["Init"], found["Finalize"]
    return found


def names() -> set[str]:
    return {n.removesuffix("GetWorkspaceSize") for n in prototypes()}


def test_every_operator_has_the_vendors_arguments() -> None:
    assert len(names()) >= 99
    for name in names():
        own = types(ABI["operators"][name])
        if name in ONE_PHASE:
            assert prototypes()[name] == own, name
            continue
        assert prototypes()[f"{name}GetWorkspaceSize"] == [*own, "uint64_t*", "aclOpExecutor**"]
        assert prototypes()[name] == ["void*", "uint64_t", "aclOpExecutor*", "aclrtStream"], (
            name
        )


def test_chips_name_operators_that_there_are() -> None:
    for chip in umbel_cann_simulator.chips():
        text = (umbel_cann_simulator.TOOLKIT / f"chips/{chip}.txt").read_text()
        said = re.findall(r"^op (\w+)", text, re.MULTILINE)
        assert len(said) == len(set(said))
        assert set(said) <= names()
        if chip == "910B":
            assert set(said) == names() - set(ONE_PHASE)

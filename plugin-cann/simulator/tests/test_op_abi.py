"""The operators' prototypes against the file that the plugin's are compared with, too."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from functools import cache
from os import environ

import umbel_cann_simulator
from simulated import HEADER
from vendor import ABI, kinds

ONE_PHASE = ("CalculateMatmulWeightSize", "CalculateMatmulWeightSizeV2")


@cache
def prototypes() -> dict[str, list[str]]:
    """Of all operators, as the compiler sees them."""
    compiler = shlex.split(environ.get("CC", "")) or [shutil.which("cc") or "gcc"]
    found = {}
    for source in sorted(HEADER.parent.glob("op*.c")):
        command = [*compiler, "-std=c11", "-D_GNU_SOURCE", "-E", "-P", str(source)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, arguments in re.findall(r"aclnnStatus aclnn(\w+)\(([^()]*)\)", text):
            found[name] = kinds(arguments)
    del found["Init"], found["Finalize"]
    return found


def names() -> set[str]:
    return {n.removesuffix("GetWorkspaceSize") for n in prototypes()}


def test_every_operator_has_the_vendors_arguments() -> None:
    assert len(names()) >= 99
    for name in names():
        own = kinds(ABI["operators"][name])
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

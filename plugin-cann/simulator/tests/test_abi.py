"""The header against the file that the plugin's table is compared with, too."""

from __future__ import annotations

import re

from simulated import HEADER
from vendor import ABI, kinds

TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def functions() -> dict[str, tuple[list[str], list[str]]]:
    pattern = r"ACL_API ([^;()]*?)(\w+)\(([^()]*)\);"
    return {name: (kinds(r), kinds(args)) for r, name, args in re.findall(pattern, TEXT)}


def constants() -> dict[str, int]:
    found = {}
    for body in re.findall(r"enum \{(.*?)\}", TEXT, flags=re.DOTALL):
        value = -1
        for entry in body.split(","):
            name, given, number = entry.strip().partition(" = ")
            value = int(number, 0) if given else value + 1
            found[name] = value
    return found


def test_every_function_of_the_header_has_the_vendors_arguments() -> None:
    known = ABI["functions"]
    for name, types in functions().items():
        result, arguments = known[name]
        assert types == (kinds(result), kinds(arguments)), name


def test_the_header_has_every_function_of_the_runtime() -> None:
    wanted = {name for name in ABI["functions"] if name.startswith(("aclrt", "aclmdl"))}
    assert len(wanted) > 60
    assert wanted <= functions().keys()


def test_numbers_have_the_vendors_values() -> None:
    known = dict(ABI["flags"])
    for values in ABI["enums"].values():
        known |= values
    own = constants()
    shared = own.keys() & known.keys()
    assert len(shared) > 90
    assert {name: own[name] for name in shared} == {name: known[name] for name in shared}


def test_codes_are_the_vendors() -> None:
    codes = {int(code): name for code, name in ABI["errors"].items()}
    for name, value in constants().items():
        if name.startswith(("ACL_ERROR_", "ACLNN_")):
            short = codes[value].replace("_ERR_INNER_", "_").replace("ACLNN_ERR_", "ACLNN_")
            assert short == name

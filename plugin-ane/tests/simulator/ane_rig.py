"""Hand-written MIL for the simulator, and a rig that runs it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from umbel_ane import profile
from umbel_ane.costs import nbytes
from umbel_ane.drivers import Request
from umbel_ane.drivers.simulator import CONSTRAINTS, Made, Simulator
from umbel_ane.mil.blob import write_blob
from umbel_ane.mil.parse import parse
from umbel_ane.mil.program import Type
from umbel_ane.profile import Profile

W = "@model_path/w.bin"
LEAST = 49152
DTYPES = {"fp16": np.float16, "fp32": np.float32}
STRICT = "orion-m4-macos15"
OTHERS = ("m1", "m4-macos27", "maderix", "permissive")
CONV = """
    string pt = const()[name = string("pt"), val = string("valid")];
    tensor<int32, [2]> st = const()[name = string("st"), val = tensor<int32, [2]>([1, 1])];
    tensor<int32, [4]> pd = const()[name = string("pd"), val = tensor<int32, [4]>([0,0,0,0])];
    int32 gr = const()[name = string("gr"), val = int32(1)];
    bool yes = const()[name = string("yes"), val = bool(true)];
    bool no = const()[name = string("no"), val = bool(false)];
"""
HOW = "dilations = st, groups = gr, pad = pd, pad_type = pt, strides = st"


def tensor(shape: Sequence[int], dtype: str = "fp16") -> str:
    return f"tensor<{dtype}, [{', '.join(map(str, shape))}]>"


def say(shape: Sequence[int], name: str, call: str, dtype: str = "fp16") -> str:
    """One statement."""
    return f'{tensor(shape, dtype)} {name} = {call}[name = string("{name}")];\n'


def weight(shape: Sequence[int], name: str = "W", offset: int = 64, path: str = W) -> str:
    kind = tensor(shape)
    blob = f'BLOBFILE(path = string("{path}"), offset = uint64({offset}))'
    return f'{kind} {name} = const()[name = string("{name}"), val = {kind}({blob})];\n'


def ints(name: str, *values: int) -> str:
    kind = f"tensor<int32, [{len(values)}]>"
    listed = ", ".join(map(str, values))
    return f'{kind} {name} = const()[name = string("{name}"), val = {kind}([{listed}])];\n'


def program(inputs: Mapping[str, str], body: str, *outputs: str) -> bytes:
    """`inputs`: the type of each."""
    given = ", ".join(f"{kind} {name}" for name, kind in inputs.items())
    returned = ", ".join(outputs)
    head = f"program(1.3)\n{{\n  func main<ios18>({given}) {{\n"
    return f"{head}{CONV}{body}\n  }} -> ({returned});\n}}\n".encode()


def blob(values: np.ndarray) -> bytes:
    return write_blob([values.astype(np.float16).reshape(-1)])[0]


def of(name: str, **changes: Any) -> Profile:
    return attrs.evolve(profile.load(name), **changes)


def run(
    rules: Profile | str,
    text: bytes,
    given: Mapping[str, np.ndarray],
    weights: Mapping[str, bytes] | None = None,
    sizes: Mapping[str, int] | None = None,
    wanted: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, np.ndarray]:
    """Compiles, loads, evaluates. Surfaces are bound in the DECLARED order, as a naive caller
    does it; results are read as the types that the text declares, in that order too."""
    rules = profile.load(rules) if isinstance(rules, str) else rules
    driver = Simulator(rules)
    model = driver.model(driver.descriptor(text, weights or {}))
    main = parse(text).main
    kinds = main.types()
    ports = [v.name for v in main.inputs], list(main.outputs)
    most = max(nbytes(kinds[name]) for side in ports for name in side)
    try:
        model.compile()
        model.load()
        room = {n: (sizes or {}).get(n, max(most, LEAST)) for side in ports for n in side}
        bound = {n: driver.surface(size) for n, size in room.items()}
        for name in ports[0]:
            with bound[name].lock() as memory:
                data = np.ascontiguousarray(given[name], DTYPES[kinds[name].dtype])
                memory[: data.nbytes] = data.reshape(-1).view(np.uint8)
        model.evaluate(Request([bound[n] for n in ports[0]], [bound[n] for n in ports[1]]))
        return {n: _read(bound[n], kinds[n]) for n in ports[1]}
    finally:
        model.release()
        driver.close()


def _read(surface: Any, kind: Type) -> np.ndarray:
    dims = [d or 1 for d in kind.dims or ()]
    with surface.lock(read_only=True) as memory:
        values = memory[: nbytes(kind)].view(DTYPES[kind.dtype]).reshape(dims)
        return np.array(values, np.float32)


def breaks(number: int, rules: str, text: bytes, **more: Any) -> list[str]:
    """What the table of constraints says of a program."""
    made = Made(profile.load(rules), parse(text), text=text, **more)
    return CONSTRAINTS[number].check(made)

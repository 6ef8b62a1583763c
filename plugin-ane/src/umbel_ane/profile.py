"""What a chip under one macOS accepts, breaks and costs: data, since sources disagree.

A profile is a file `profiles/NAME.toml`. It may begin with `like = "OTHER"` and give only what
differs; lists with `more_` before their name add to the other's. Where a figure comes from is
said beside it, in a comment.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import attrs
from umbel.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT = "orion-m4-macos15"


@attrs.frozen(kw_only=True)
class Costs:
    """Milliseconds and rates; what the virtual clock and the planner count with."""

    dispatch_ms: float = 0.095  # of one evaluation, whatever it computes
    surface_ms: float = 0.0  # of the first use of a surface after the host wrote it
    surface_gbps: float = 0.0  # at which the host turns values to a surface's layout and back
    compile_ms: float = 42.0  # of a program
    compile_ms_per_mb: float = 0.0
    load_ms: float = 0.0
    restart_ms: float = 50.0  # exec(), where the compile budget is used up (constraint 15)
    conv_tflops: float = 0.0
    matmul_tflops: float = 0.0  # a third of conv (constraint 17)
    elementwise_gbps: float = 0.0
    weight_gbps: float = 0.0  # weights are read from memory at each evaluation
    sram_bytes: int = 32 << 20
    sram_slowdown: float = 1.3  # of an operation whose live activations exceed it
    host_gflops: float = 0.0  # of the CPU beside it, for choosing where a part runs
    host_gbps: float = 0.0


@attrs.frozen(kw_only=True)
class Profile:
    """The rules of one kind of machine. The numbers in comments are those of the table of 20
    constraints that docs/backends/ane.md repeats."""

    name: str
    description: str
    chip: str = ""  # aneArchitectureType: h16g
    macos: str = ""
    engines: int = 1
    cores: int = 16

    # what the compiler refuses
    refused: frozenset[str] = frozenset()  # MIL operations (1 concat, 10 gelu, rsqrt ...)
    masked_sdpa: bool = False  # scaled_dot_product_attention heeds its mask (6)
    named_flags: bool = True  # transpose flags must be named constants (12)
    conv_bias: bool = False  # conv takes `bias` (13)
    live_outputs: bool = True  # outputs must be results of statements (14)
    max_channels: int = 16384  # of a convolution, in or out; more is refused (16)
    max_dim: int = 16384  # of any axis
    spatial_multiple: int = 1  # the last axis of inputs and outputs
    inner_multiple: int = 1  # the summed axis of a matmul, else zeros come out, silently
    fp32_io: bool = True  # float32 inputs and outputs of a program
    palettes: bool = False  # constexpr_lut_to_dense
    runtime_conv: bool = False  # a convolution heeds a weight that is no constant; else: zeros
    needs_epsilon: frozenset[str] = frozenset({"rsqrt", "log", "inverse"})
    max_program_ops: int = 0  # 0: no limit is known

    # weights
    one_file: bool = True  # many weights may lie in one file
    max_files: int = 16  # weight files of a program; 0: any
    scalar_takes_file: bool = False  # a scalar in add, mul or pow leaves one file fewer
    max_weight_bytes: int = 2 << 30  # of a program
    verifies_bundle: bool = False  # what is not staged is said by verifyBundleAtPath, code 10
    blob_error: str = "garbage"  # a wrong offset gives garbage, or is an "error" (8)
    reload: str = "snapshot"  # "reread": unload, overwrite, load changes the weights (7)
    id_of_contents: bool = False  # the identifier depends on what is in weight files

    # surfaces
    min_surface: int = 49152  # bytes (4)
    uniform_inputs: bool = True  # (18)
    uniform_outputs: bool = True  # (2)
    max_inputs: int = 0  # 0: any
    binding: str = "sorted"  # "sorted" by name (3, 19), or "declared"
    packed: bool = True  # data is read packed from byte 0 (20)

    # numbers
    saturates_at: float = 0.0  # |x| of a matmul beyond it becomes infinite; 0: float16's range
    slice_saturates_at: float = 0.0  # |x| through a slice along the last axis; 0: not at all
    reduction_chunk: int = 0  # longer sums round each partial sum of so many to float16
    drops_nan: bool = False  # NaN becomes 0 on its way
    poisoned_by: frozenset[str] = frozenset()  # operations after which every evaluation fails

    # the process
    compile_limit: int = 119  # (5); 0: none
    at_limit: str = "silent"  # no and no error, or "crash"
    may_crash: bool = False  # a compile can take the process with it

    costs: Costs = attrs.field(factory=Costs)


CHOICES = {
    "blob_error": ("garbage", "error"),
    "reload": ("snapshot", "reread"),
    "binding": ("sorted", "declared"),
    "at_limit": ("silent", "crash"),
}


def names() -> tuple[str, ...]:
    """The profiles there are."""
    found = (f.name for f in files("umbel_ane").joinpath("profiles").iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in found if n.endswith(".toml")))


@cache
def load(name: str = DEFAULT) -> Profile:
    """The profile of that name.

    >>> load("m1").fp32_io, load("m1").costs.restart_ms
    (False, 50.0)
    """
    return read(name, {n: _text(n) for n in names()})


def read(name: str, texts: Mapping[str, str]) -> Profile:
    """The profile `name` out of files that are given by their names."""
    found = _merged(name, texts, ())
    costs = _checked(Costs, found.pop("costs", {}), f"profile {name}, [costs]")
    return Profile(
        name=name, costs=Costs(**costs), **_checked(Profile, found, f"profile {name}")
    )


def _text(name: str) -> str:
    return files("umbel_ane").joinpath("profiles").joinpath(f"{name}.toml").read_text("utf-8")


def _merged(name: str, texts: Mapping[str, str], above: tuple[str, ...]) -> dict[str, Any]:
    if name in above:
        msg = "a profile is like itself"
        raise OptionError(msg, where=" -> ".join((*above, name)), do="remove one `like`")
    if name not in texts:
        msg = "there is no such profile of a Neural Engine"
        where = f"`like` of {above[-1]}" if above else None
        known = ", ".join(sorted(texts))
        raise OptionError(msg, where=where, expected=f"one of {known}", got=name)
    try:
        own: dict[str, Any] = tomllib.loads(texts[name])
    except tomllib.TOMLDecodeError as error:
        msg = "a profile is not TOML"
        raise OptionError(msg, where=f"profile {name}", got=str(error)) from None
    other = own.pop("like", None)
    result = {} if other is None else _merged(other, texts, (*above, name))
    costs = {**result.get("costs", {}), **own.pop("costs", {})}
    for key, value in own.items():
        plain = key.removeprefix("more_")
        result[plain] = [*result.get(plain, []), *value] if plain != key else value
    return {**result, "costs": costs}


def _checked(kind: type, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`given` as arguments of `kind`: every key known, every value of the field's type."""
    wanted = {f.name: f for f in attrs.fields(kind) if f.name not in ("name", "costs")}
    result = {}
    for key, value in given.items():
        if key not in wanted:
            msg = "a profile has no such key"
            raise OptionError(msg, where=where, expected=", ".join(wanted), got=key)
        result[key] = _converted(key, value, str(wanted[key].type), where)
    missing = [n for n, f in wanted.items() if f.default is attrs.NOTHING and n not in given]
    if missing:
        msg = "a profile lacks a key"
        raise OptionError(msg, where=where, expected=", ".join(missing))
    return result


def _converted(key: str, value: Any, kind: str, where: str) -> Any:
    kinds: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": (int, float)}
    if kind.startswith("frozenset"):
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return frozenset(value)
    elif isinstance(value, kinds[kind]) and isinstance(value, bool) == (kind == "bool"):
        if value in CHOICES.get(key, (value,)):
            return float(value) if kind == "float" else value
        kind = " or ".join(CHOICES[key])
    msg = f"`{key}` of a profile has a value that it cannot have"
    raise OptionError(msg, where=where, expected=kind, got=repr(value))

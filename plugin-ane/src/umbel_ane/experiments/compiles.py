"""What the compiler takes: for each question one program that differs from a plain one in that.

Each is compiled and thrown away. Where taking it is not enough, it is run as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import numpy as np

from umbel_ane.experiments.bench import Bench, Found, Text
from umbel_ane.mil.blob import write_blob
from umbel_ane.mil.program import Blob, Literal, Ref, Type
from umbel_ane.profile import Profile

C, S = 64, 32
SHAPE = (1, C, 1, S)
X = Ref("x")
WIDE = 20000  # channels: more than most are said to take


def plain(dtype: str = "fp16", shape: tuple[int, ...] = SHAPE) -> Text:
    return Text({"x": Type(dtype, shape)})


def square(value: float = 1.0) -> np.ndarray:
    """A weight of a convolution, which multiplies by `value`."""
    return (np.eye(C) * value).reshape(C, C, 1, 1)


@attrs.frozen
class Question:
    what: str
    rule: str
    build: Callable[[], tuple[Text, Ref]]
    refuses: Callable[[Profile], bool]


def _concat() -> tuple[Text, Ref]:
    text = plain()
    args = {"values": (X, X), "axis": 1, "interleave": False}
    return text, text.add("concat", (1, 2 * C, 1, S), **args)


def _operation(op: str, **args: object) -> Callable[[], tuple[Text, Ref]]:
    def build() -> tuple[Text, Ref]:
        text = plain()
        return text, text.add(op, SHAPE, x=X, **args)

    return build


def _bias() -> tuple[Text, Ref]:
    text = plain()
    weight, bias = *text.weights("w.bin", square()), *text.weights("b.bin", np.ones(C))
    return text, text.conv(X, weight, SHAPE, bias=bias)


def _flags() -> tuple[Text, Ref]:
    text = plain(shape=(1, 1, C, C))
    flag = Literal(Type("bool"), False)
    return text, text.add("matmul", (1, 1, C, C), x=X, y=X, transpose_x=flag, transpose_y=flag)


def _dead() -> tuple[Text, Ref]:
    text = plain()
    text.add("relu", SHAPE, x=X)
    return text, X


def _fp32() -> tuple[Text, Ref]:
    text = plain("fp32")
    inner = text.add("relu", SHAPE, x=text.add("cast", SHAPE, x=X, dtype="fp16"))
    return text, text.add("cast", SHAPE, "fp32", x=inner, dtype="fp32")


def _offset() -> tuple[Text, Ref]:
    text, path = plain(), "@model_path/w.bin"
    text.files[path], _ = write_blob([square().astype(np.float16)])
    return text, text.conv(X, text.blob(path, 128, Type("fp16", (C, C, 1, 1))), SHAPE)


def _palette() -> tuple[Text, Ref]:
    text, path, dims = plain(), "@model_path/w.bin", (C, C, 1, 1)
    indices, table = np.zeros(dims, np.uint8), np.arange(16, dtype=np.float16)
    text.files[path], at = write_blob([(indices, "uint4"), table])
    kinds = Type("uint4", dims), Type("fp16", (1, 1, 1, 1, 16, 1))
    literals = [Literal(kind, Blob(path, n)) for n, kind in zip(at, kinds, strict=True)]
    weight = text.add("constexpr_lut_to_dense", dims, indices=literals[0], lut=literals[1])
    return text, text.conv(X, weight, SHAPE)


def _narrow() -> tuple[Text, Ref]:
    shape = (1, C, 1, 24)
    text = plain(shape=shape)
    return text, text.add("relu", shape, x=X)


def _wide() -> tuple[Text, Ref]:
    text = plain()
    (weight,) = text.weights("w.bin", np.zeros((WIDE, C, 1, 1)))
    return text, text.conv(X, weight, (1, WIDE, 1, S))


def _one_file() -> tuple[Text, Ref]:
    text = plain()
    one, two = text.weights("w.bin", square(), square(2.0))
    return text, text.conv(text.conv(X, one, SHAPE), two, SHAPE)


def _files(count: int, scalar: bool = False) -> Callable[[], tuple[Text, Ref]]:
    def build() -> tuple[Text, Ref]:
        text, found = plain(), X
        for i in range(count):
            (weight,) = text.weights(f"w{i:02}.bin", square())
            found = text.conv(found, weight, SHAPE)
        return text, text.add("mul", SHAPE, x=found, y=0.5) if scalar else found

    return build


def _refuses(op: str) -> Callable[[Profile], bool]:
    return lambda profile: op in profile.refused


QUESTIONS = (
    Question("concat", "refused", _concat, _refuses("concat")),
    Question("gelu", "refused", _operation("gelu", mode="EXACT"), _refuses("gelu")),
    Question("rsqrt", "refused", _operation("rsqrt", epsilon=1e-3), _refuses("rsqrt")),
    Question("neg", "refused", _operation("neg"), _refuses("neg")),
    Question("a convolution with a bias", "conv_bias", _bias, lambda p: not p.conv_bias),
    Question("flags written in place", "named_flags", _flags, lambda p: p.named_flags),
    Question("an input as an output", "live_outputs", _dead, lambda p: p.live_outputs),
    Question("float32 inputs and outputs", "fp32_io", _fp32, lambda p: not p.fp32_io),
    Question(
        "a wrong offset into weights", "blob_error", _offset, lambda p: p.blob_error == "error"
    ),
    Question("a palette of weights", "palettes", _palette, lambda p: not p.palettes),
    Question(
        "a last axis of 24", "spatial_multiple", _narrow, lambda p: 24 % p.spatial_multiple > 0
    ),
    Question(
        f"a convolution to {WIDE} channels",
        "max_channels",
        _wide,
        lambda p: min(p.max_channels, p.max_dim) < WIDE,
    ),
    Question("two weights in one file", "one_file", _one_file, lambda p: not p.one_file),
    Question("17 weight files", "max_files", _files(17), lambda p: 0 < p.max_files < 17),
)


def experiments(bench: Bench) -> Iterator[Found]:
    for question in QUESTIONS:
        yield _asked(bench, question)
    yield _scalar(bench)


def _asked(bench: Bench, question: Question) -> Found:
    said = bench.refused(*question.build())
    refused, rule = bool(said), question.rule
    answer = f"refused: {said}" if refused else "taken"
    return Found(question.what, answer, rule, lambda p: question.refuses(p) == refused)


def _scalar(bench: Bench) -> Found:
    """Whether a scalar takes a weight file's place; said only where 16 alone are taken."""
    what, rule = "16 weight files and a scalar", "scalar_takes_file"
    said = bench.refused(*_files(16, scalar=True)())
    if said and bench.refused(*_files(16)()):
        return Found(what, f"refused, and so are 16 weight files alone: {said}")
    takes = bool(said)
    answer = f"refused, while 16 alone are taken: {said}" if takes else "taken"
    return Found(what, answer, rule, lambda p: _scalar_counts(p) == takes)


def _scalar_counts(profile: Profile) -> bool:
    return profile.scalar_takes_file and profile.max_files == 16

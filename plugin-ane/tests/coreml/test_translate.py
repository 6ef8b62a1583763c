"""Our text through coremltools: its types, its numbers, its packages."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from umbel_ane.coreml import CoremlError
from umbel_ane.coreml.export import Source, export, export_all
from umbel_ane.coreml.translate import build, evaluate
from umbel_ane.mil.blob import BlobError, write_blob
from umbel_ane.mil.parse import parse

# coremltools leaves folders of its own to the garbage collector
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

coremltools: Any = pytest.importorskip("coremltools")


def operations(program: Any, function: str = "main") -> list[str]:
    return [o.op_type for o in program.functions[function].operations if o.op_type != "const"]


def reloaded(package: Path) -> Any:
    """The program of a package, out of its file."""
    from coremltools.converters.mil.frontend.milproto.load import load

    spec = coremltools.utils.load_spec(str(package))
    weights = package / "Data/com.apple.CoreML/weights"
    return load(spec, spec.specificationVersion, str(weights))


def test_numbers(sample: Any) -> None:
    """Its value inference agrees with float64 to what float16 allows."""
    inputs = sample.inputs()
    found = evaluate(sample.source.program, sample.weights, inputs)
    expected = sample.expected(inputs)
    assert list(found) == ["b00_y", "b01_shares"]
    for name, values in found.items():
        assert values.dtype == np.float16
        np.testing.assert_allclose(values, expected[name], rtol=1e-3, atol=5e-3)
    assert found["b01_shares"][..., 9:].max() == 0


def test_build(sample: Any) -> None:
    made = build(sample.source.program, sample.weights)
    main = made.functions["main"]
    assert list(main.inputs) == ["a00_x", "a01_mask"]
    assert [v.name for v in main.outputs] == ["b00_y", "b01_shares"]
    assert "conv" in operations(made)
    up = main.find_ops(op_type="conv")[0].weight.val
    np.testing.assert_array_equal(up.reshape(8, 8), sample.up)


def test_package(sample: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Written quietly, read back by coremltools: the same operations, inputs and weights."""
    path = export(sample.source, tmp_path / "deep" / "sample.mlpackage")
    assert capsys.readouterr().err == ""
    made = reloaded(path)
    found = operations(made)  # its passes may fuse others
    assert {"conv", "pow", "split", "softmax", "concat"} < set(found)
    assert len(found) <= len(operations(build(sample.source.program, sample.weights)))
    spec = coremltools.utils.load_spec(str(path))
    half = coremltools.proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT16
    for feature, name in zip(spec.description.input, ("a00_x", "a01_mask"), strict=True):
        assert (feature.name, feature.type.multiArrayType.dataType) == (name, half)
    up = made.functions["main"].find_ops(op_type="conv")[0].weight.val
    np.testing.assert_array_equal(up.reshape(8, 8), sample.up)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_package_again(sample: Any, tmp_path: Path) -> None:
    """A second export takes the place of the first; a failed one leaves it."""
    path = export(sample.source, tmp_path / "sample.mlpackage")
    (path / "old").touch()
    broken = parse(sample.text.replace("1, 16]> b01_shares", "1, 8]> b01_shares"))
    with pytest.raises(CoremlError):
        export(Source(broken, sample.weights), path)
    assert (path / "old").exists()
    export(sample.source, path)
    assert not (path / "old").exists()
    with pytest.raises(CoremlError, match="ending"):
        export(sample.source, tmp_path / "sample.mlmodel")


def test_functions(sample: Any, tmp_path: Path) -> None:
    """Several programs in one package, with each weight once."""
    rng = np.random.default_rng(3)
    big = rng.standard_normal((8, 8, 1, 1)).astype(np.float16)
    weights = {name: write_blob([big, sample.bias])[0] for name in sample.weights}
    source = Source(sample.source.program, weights)
    one = export(source, tmp_path / "one.mlpackage")
    path = export_all({"first": source, "second": source}, tmp_path / "two.mlpackage")
    made = reloaded(path)
    assert sorted(made.functions) == ["first", "second"]
    file = "Data/com.apple.CoreML/weights/weight.bin"
    assert (path / file).stat().st_size == (one / file).stat().st_size
    shutil.rmtree(one)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("[1, 4, 1, 16]> left", "[1, 5, 1, 16]> left", "another type than the text declares"),
        ("fp16, [1, 8, 1, 16]> gate", "fp32, [1, 8, 1, 16]> gate", "another type than"),
        ("sigmoid(x", "no_such(x", "no such operation"),
        ("sigmoid(x =", "sigmoid(y =", "does not take"),
        ("sigmoid(x = biased", "sigmoid(x = unknown", "not defined"),
        (", tensor<fp16, [1, 4, 1, 16]> right", "", "number of results"),
        ("-> (b00_y", "-> (up", "not the result of an operation"),
        ("-> (b00_y", "-> (a00_x", "not the result of an operation"),
        ("[1, 8, 1, 16]> a00_x", "[1, 8, 1, ?]> a00_x", "without a size"),
    ],
)
def test_refused(sample: Any, old: str, new: str, what: str) -> None:
    text = sample.text.replace(old, new)
    assert text != sample.text
    with pytest.raises(CoremlError, match=what):
        build(parse(text), sample.weights)


def test_refused_weights(sample: Any) -> None:
    with pytest.raises(BlobError, match="no such weight file"):
        build(sample.source.program, {})
    moved = parse(sample.text.replace("uint64(64)", "uint64(128)"))
    with pytest.raises(BlobError, match="no weight begins"):
        build(moved, sample.weights)


def test_refused_inputs(sample: Any) -> None:
    inputs = sample.inputs()
    with pytest.raises(CoremlError, match="input is missing") as caught:
        evaluate(sample.source.program, sample.weights, {"a00_x": inputs["a00_x"]})
    assert caught.value.where == "a01_mask"
    inputs["a00_x"] = inputs["a00_x"].astype(np.float32)
    with pytest.raises(CoremlError, match="another type"):
        evaluate(sample.source.program, sample.weights, inputs)


def test_not_computed(sample: Any) -> None:
    """coremltools has no value of silu: that is said."""
    program = parse(sample.text.replace("sigmoid(x", "silu(x"))
    build(program, sample.weights)
    with pytest.raises(CoremlError, match="cannot compute") as caught:
        evaluate(program, sample.weights, sample.inputs())
    assert "gate = silu" in str(caught.value.where)


def test_palette() -> None:
    """Four bits a weight: indices and their table, both in the file."""
    rng = np.random.default_rng(1)
    indices = rng.integers(0, 16, (6, 4, 1, 1), dtype=np.uint8)
    table = rng.standard_normal((1, 1, 1, 1, 16, 1)).astype(np.float16)
    data, (first, second) = write_blob([(indices, "uint4"), table])
    file = 'path = string("@model_path/w.bin")'
    text = f"""program(1.3) {{ func main<ios18>(tensor<fp16, [1, 4, 1, 16]> x) {{
        tensor<fp16, [6, 4, 1, 1]> w = constexpr_lut_to_dense()[
            indices = tensor<uint4, [6, 4, 1, 1]>(BLOBFILE({file}, offset = uint64({first}))),
            lut = tensor<fp16, [1, 1, 1, 1, 16, 1]>(
                BLOBFILE({file}, offset = uint64({second})))];
        tensor<fp16, [1, 6, 1, 16]> y = conv(weight = w, x = x, pad_type = string("valid"));
        }} -> (y); }}"""
    program, weights = parse(text), {"@model_path/w.bin": data}
    x = rng.standard_normal((1, 4, 1, 16)).astype(np.float16)
    found = evaluate(program, weights, {"x": x})["y"]
    weight = table.ravel()[indices[:, :, 0, 0]].astype(np.float32)
    np.testing.assert_allclose(found[0, :, 0], weight @ x[0, :, 0], atol=5e-3)
    assert "constexpr_lut_to_dense" in operations(build(program, weights))


def test_convolution_of_more_than_one() -> None:
    """It is built, and not computed."""
    text = """program(1.3) { func main<ios18>(tensor<fp16, [1, 2, 1, 16]> x) {
        tensor<fp16, [1, 2, 1, 2]> w = const()[
            val = tensor<fp16, [1, 2, 1, 2]>([[[[1, 2]], [[3, 4]]]])];
        tensor<fp16, [1, 1, 1, 15]> y = conv(weight = w, x = x, pad_type = string("valid"));
        } -> (y); }"""
    program = parse(text)
    assert operations(build(program, {})) == ["conv"]
    with pytest.raises(CoremlError, match="does not take") as caught:
        evaluate(program, {}, {"x": np.zeros((1, 2, 1, 16), np.float16)})
    assert "not 1x1" in str(caught.value.got)


def test_without_coremltools(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coremltools", None)
    with pytest.raises(CoremlError) as caught:
        build(sample.source.program, sample.weights)
    assert caught.value.do == "pip install 'umbel-plugin-ane[coreml]'"


def test_older_dialect() -> None:
    """Scalars with brackets, a product of two inputs."""
    text = """program(1.0) { func main<ios17>(tensor<fp32, [2, 3]> x, tensor<fp32, [3, 2]> y) {
        tensor<bool, []> no = const()[val = tensor<bool, []>(false)];
        tensor<fp32, [2, 2]> z = matmul(transpose_x = no, transpose_y = no, x = x, y = y);
        tensor<fp32, []> two = const()[val = tensor<fp32, []>(2)];
        tensor<fp32, [2, 2]> out = mul(x = z, y = two);
        } -> (out); }"""
    x, y = (np.arange(6, dtype=np.float32).reshape(s) for s in ((2, 3), (3, 2)))
    found = evaluate(parse(text), {}, {"x": x, "y": y})["out"]
    np.testing.assert_array_equal(found, 2 * x @ y)
    assert attrs.asdict(parse(text).main.inputs[0].type)["dims"] == (2, 3)

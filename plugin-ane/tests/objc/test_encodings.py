"""The table of methods, and the question whether this system's are the same."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from ane_framework import Framework
from umbel.errors import DeviceError
from umbel_ane.drivers.objc import Private
from umbel_ane.drivers.objc.encodings import CHECKED, METHODS, Method, signature, types
from umbel_ane.drivers.objc.preflight import preflight, require

OBJECT, PUT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
WIDTHS = {"B": 4, "I": 4, "q": 8, "Q": 8, "@": 8, ":": 8, "^": 8}


@pytest.mark.parametrize(
    ("encoding", "result", "arguments"),
    [
        ("v16@0:8", None, ()),
        ("I16@0:8", ctypes.c_uint, ()),
        ("q16@0:8", ctypes.c_int64, ()),
        ("*16@0:8", ctypes.c_char_p, ()),
        ("@24@0:8Q16", OBJECT, (ctypes.c_uint64,)),
        ("B28@0:8I16^@20", ctypes.c_bool, (ctypes.c_uint, PUT)),
        ("B36@0:8I16@20^@28", ctypes.c_bool, (ctypes.c_uint, OBJECT, PUT)),
        ("@24@0:8^{__IOSurface=}16", OBJECT, (OBJECT,)),
        ("r*24@0:8r^@16", ctypes.c_char_p, (PUT,)),
    ],
)
def test_an_encoding_says_what_to_pass(encoding, result, arguments) -> None:
    assert signature(encoding) == (result, arguments)


@pytest.mark.parametrize("encoding", ["", "v16", "v16@0", "v16:0@8", "v16@0:8?16", "B16@0:8x"])
def test_what_is_no_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(ValueError, match="no type encoding"):
        signature(encoding)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_table_agrees_with_itself(method: Method) -> None:
    """A selector has as many colons as arguments, and offsets are sums of widths."""
    given = types(method.encoding)[1:]
    assert len(given) - 2 == method.selector.count(":")
    offsets = [0]
    for stars, kind in given:
        offsets.append(offsets[-1] + WIDTHS["^" if stars else kind])
    written = "".join(f"{s}{k}{n}" for (s, k), n in zip(given, offsets, strict=False))
    stars, kind = types(method.encoding)[0]
    assert method.encoding == f"{stars}{kind}{offsets[-1]}{written}"


def test_the_fake_has_the_methods_of_the_table(framework: Framework) -> None:
    """It has its own list of encodings: both were written by hand."""
    table = {(m.owner, m.selector, m.of_class): m.encoding for m in METHODS}
    assert framework.encodings == table
    assert all(checked.there for checked in preflight(framework))


@pytest.mark.parametrize("method", CHECKED, ids=str)
@pytest.mark.parametrize("changed", ["v24@0:8@16", "{CGRect=dddd}16@0:8"])
def test_each_changed_encoding_is_refused(
    framework: Framework, method: Method, changed: str
) -> None:
    """What is not needed is done without."""
    framework.encodings[method.owner, method.selector, method.of_class] = changed
    if not method.required:
        Private.open(framework).close()
        return
    with pytest.raises(DeviceError) as caught:
        Private.open(framework)
    said = str(caught.value)
    for part in (str(method), method.encoding, changed, "macOS 15.3", "coreml"):
        assert part in said
    assert not any(owner.startswith("_ANE") for owner, _ in framework.calls)


@pytest.mark.parametrize("method", CHECKED, ids=str)
def test_a_missing_method(framework: Framework, method: Method) -> None:
    """Is refused where programs need it, and told otherwise."""
    del framework.encodings[method.owner, method.selector, method.of_class]
    if method.required:
        with pytest.raises(DeviceError, match="not the one that is known") as caught:
            Private.open(framework)
        assert "no such method" in str(caught.value)
    else:
        driver = Private.open(framework)
        assert str(method) in str(driver.status()["missing methods"])
        driver.close()


def test_a_class_method_is_no_instance_method(framework: Framework) -> None:
    key = "_ANEDeviceInfo", "hasANE", True
    framework.encodings[(*key[:2], False)] = framework.encodings.pop(key)
    told = {str(c.method): c.got for c in preflight(framework)}
    assert told["+[_ANEDeviceInfo hasANE]"] is None


def test_all_that_is_wrong_is_counted(framework: Framework) -> None:
    for key in list(framework.encodings):
        if key[0] == "_ANERequest" or "QoS" in key[1]:
            framework.encodings[key] = "v16@0:8"
    with pytest.raises(DeviceError, match="and 4 more methods"):
        require(preflight(framework), "macOS 99")


@pytest.mark.parametrize("library", ["AppleNeuralEngine", "IOSurface"])
def test_a_framework_that_is_not_there(tmp_path: Path, library: str) -> None:
    framework = Framework(tmp_path)
    framework.missing_libraries.add(library)
    with pytest.raises(DeviceError, match="cannot be loaded") as caught:
        Private.open(framework)
    assert library in str(caught.value)


def test_what_the_chip_tells(private: Private) -> None:
    chip = private.info()
    assert (chip.architecture, chip.engines, chip.cores, chip.board) == ("h16g", 1, 16, 192)
    assert (chip.sub_type, chip.system) == ("none", "macOS 15.3")
    assert private.profile.name == "orion-m4-macos15"
    assert not private.simulated


def test_a_mac_without_an_engine(framework: Framework) -> None:
    framework.method("_ANEDeviceInfo", "hasANE", "B16@0:8", lambda cls: False, True)
    with pytest.raises(DeviceError, match="no Neural Engine"):
        Private.open(framework)

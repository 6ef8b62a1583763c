"""How rubicon-objc is called: with a stand-in for its module, which needs macOS."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType
from typing import Any

import pytest
from umbel_ane.drivers.objc.encodings import METHODS, signature
from umbel_ane.drivers.objc.native import LIBRARIES, Rubicon

PUT = ctypes.POINTER(ctypes.c_void_p)


class objc_id(ctypes.c_void_p):  # its name there
    pass


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Messages that were sent; `runtime.answer` is the answer."""
    messages: list[tuple[Any, ...]] = []

    def send_message(
        receiver: Any, selector: Any, *args: Any, restype: Any, argtypes: Any
    ) -> Any:
        if not isinstance(receiver, objc_id):
            msg = "Receiver must be an ObjCInstance or objc_id"
            raise TypeError(msg)
        assert len(args) == len(argtypes)
        messages.append((receiver.value, selector, args, restype, [*argtypes]))
        ctypes.CFUNCTYPE(restype, *argtypes)(lambda *a: runtime.answer)(*args)
        answer = runtime.answer
        return ctypes.c_void_p(answer) if restype is ctypes.c_void_p else answer

    runtime: Any = ModuleType("rubicon.objc.runtime")
    runtime.objc_id, runtime.send_message, runtime.answer = objc_id, send_message, 7
    package, outer = ModuleType("rubicon.objc"), ModuleType("rubicon")
    package.runtime = runtime  # type: ignore[attr-defined]
    outer.objc = package  # type: ignore[attr-defined]
    for name, module in (
        ("rubicon", outer),
        ("rubicon.objc", package),
        ("rubicon.objc.runtime", runtime),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return messages


def test_a_message(sent: list[tuple[Any, ...]]) -> None:
    native, put = Rubicon(), ctypes.c_void_p()
    result, arguments = signature("B36@0:8I16@20^@28")
    values = 21, 0x1000, ctypes.byref(put)
    assert native.send(0x2000, "loadWithQoS:options:error:", result, arguments, *values)
    receiver, selector, given, restype, argtypes = sent[0]
    assert (receiver, selector) == (0x2000, "loadWithQoS:options:error:")
    assert given == values
    assert restype is ctypes.c_bool
    assert argtypes == [ctypes.c_uint, ctypes.c_void_p, PUT]


@pytest.mark.parametrize("answer", [0x3000, None])
def test_objects_are_integers(sent: list[tuple[Any, ...]], answer: int | None) -> None:
    """rubicon-objc wraps a pointer; nil is None in it."""
    sys.modules["rubicon.objc.runtime"].answer = answer  # type: ignore[attr-defined]
    found = Rubicon().send(0x2000, "hexStringIdentifier", *signature("@16@0:8"))
    assert found == answer


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_every_signature_makes_a_function(method) -> None:
    """ctypes takes the types as those of a C function."""
    result, arguments = signature(method.encoding)
    ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_void_p, *arguments)


def test_c_functions_are_typed(sent: list[tuple[Any, ...]], monkeypatch) -> None:
    """Each time a function object of its own: types of one are not those of another."""
    monkeypatch.setitem(LIBRARIES, "objc", None)  # this process: C's own functions
    native = Rubicon()
    one = native.function("objc", "strlen", ctypes.c_size_t, [ctypes.c_char_p])
    two = native.function("objc", "strlen", ctypes.c_int8, [ctypes.c_void_p])
    assert one(b"abc") == 3
    assert (one.restype, two.restype) == (ctypes.c_size_t, ctypes.c_int8)


def test_a_library_that_is_not_there(sent: list[tuple[Any, ...]], monkeypatch) -> None:
    monkeypatch.setitem(LIBRARIES, "AppleNeuralEngine", "/no/such/library")
    with pytest.raises(OSError, match="no/such"):
        Rubicon().load("AppleNeuralEngine")

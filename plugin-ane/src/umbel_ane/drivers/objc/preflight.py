"""Asks the Objective-C runtime what each method looks like before the first one is called.

A method that takes other types than are passed does not fail, it crashes or reads nonsense; so
what was changed by a macOS is refused here. Offsets in the frame follow from the types and are
not compared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import attrs
from umbel.errors import DeviceError

from umbel_ane.drivers.objc.encodings import CHECKED, Method, types
from umbel_ane.drivers.objc.native import Native

_P, _TEXT = ctypes.c_void_p, ctypes.c_char_p


@attrs.frozen
class Checked:
    """A method, and what the runtime says of it."""

    method: Method
    got: str | None  # its encoding; None: there is no such method

    @property
    def fits(self) -> bool:
        if self.got is None:
            return not self.method.required
        try:
            return types(self.got) == types(self.method.encoding)
        except ValueError:
            return False

    @property
    def there(self) -> bool:
        return self.got is not None and self.fits

    def __str__(self) -> str:
        said = "missing" if self.got is None else self.got
        return f"{self.method}: expected {self.method.encoding}, got {said}"


def preflight(native: Native, methods: Sequence[Method] = CHECKED) -> tuple[Checked, ...]:
    """Every method of private classes that this driver may call."""
    return tuple(Checked(method, encoding_of(native, method)) for method in methods)


def require(checked: Sequence[Checked], system: str) -> None:
    """Refuses a system whose methods are not those of the table; what is not needed is done
    without where it is another."""
    wrong = [c for c in checked if c.method.required and not c.fits]
    if wrong:
        first = wrong[0]
        msg = f"the private API of {system} is not the one that is known: {first.method}"
        more = f", and {len(wrong) - 1} more methods" if wrong[1:] else ""
        raise DeviceError(
            msg,
            where=f"AppleNeuralEngine.framework, {system}",
            expected=first.method.encoding,
            got=f"{first.got or 'no such method'}{more}",
            do="`-O ane.driver=coreml` takes the public way; `umbel ane report` tells us of it",
        )


def encoding_of(native: Native, method: Method) -> str | None:
    owner = native.function("objc", "objc_getClass", _P, [_TEXT])(method.owner.encode())
    if not owner:
        return None
    selector = native.function("objc", "sel_registerName", _P, [_TEXT])
    kind = "class_getClassMethod" if method.of_class else "class_getInstanceMethod"
    find = native.function("objc", kind, _P, [_P, _P])
    found = find(owner, selector(method.selector.encode()))
    if not found:
        return None
    told = native.function("objc", "method_getTypeEncoding", _TEXT, [_P])(found)
    return told.decode() if told else None

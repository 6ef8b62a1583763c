"""The methods that are called, and what Python passes for each: one table, one function.

A type encoding is what the Objective-C runtime says of a method: of the result, then of every
argument, each followed by its offset in the frame. `B36@0:8I16@20^@28` gives a BOOL and takes
self, _cmd, an unsigned int, an object, and where to put an object. Those of the private classes
were reported for macOS 26 and 27 by people who asked the runtime; preflight.py compares them
with what this Mac says before anything is called.
Reference: "Type Encodings" in Apple's Objective-C Runtime Programming Guide.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

import attrs

TYPES: dict[str, Any] = {
    "v": None,
    "@": ctypes.c_void_p,
    "#": ctypes.c_void_p,
    ":": ctypes.c_void_p,
    "*": ctypes.c_char_p,
    "B": ctypes.c_bool,
    "c": ctypes.c_int8,
    "C": ctypes.c_uint8,
    "i": ctypes.c_int32,
    "I": ctypes.c_uint32,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}
_PART = re.compile(r"[rnNoORV]*(\^*)(\{[^}]*\}|[vBcCiIqQfd@#:*])(\d+)")


@attrs.frozen
class Method:
    owner: str  # a class
    selector: str
    encoding: str
    of_class: bool = False  # +, else -
    required: bool = True  # without it no program runs
    check: bool = True  # belongs to no public interface: may change

    def __str__(self) -> str:
        return f"{'+' if self.of_class else '-'}[{self.owner} {self.selector}]"


@cache
def signature(encoding: str) -> tuple[Any, tuple[Any, ...]]:
    """The result and the arguments after self and _cmd, as ctypes.

    >>> signature("B28@0:8I16@20")
    (<class 'ctypes.c_bool'>, (<class 'ctypes.c_uint'>, <class 'ctypes.c_void_p'>))
    """
    result, _self, _cmd, *arguments = (_ctype(*part) for part in types(encoding))
    return result, tuple(arguments)


def types(encoding: str) -> list[tuple[str, str]]:
    """What stands in an encoding, without offsets: the stars of a pointer, and to what.

    >>> types("B28@0:8I16^@20")
    [('', 'B'), ('', '@'), ('', ':'), ('', 'I'), ('^', '@')]
    """
    matches = list(_PART.finditer(encoding))
    parts = [(match[1], match[2]) for match in matches]
    whole = "".join(match.group() for match in matches)
    if whole != encoding or parts[1:3] != [("", "@"), ("", ":")]:
        msg = f"{encoding!r} is no type encoding of a method"
        raise ValueError(msg)
    return parts


def _ctype(stars: str, kind: str) -> Any:
    """^@ is a pointer to an object, so that it can be put there; any other pointer is plain."""
    if not stars:
        return TYPES[kind]
    return ctypes.POINTER(ctypes.c_void_p) if (stars, kind) == ("^", "@") else ctypes.c_void_p


DESCRIPTOR, MODEL = "_ANEInMemoryModelDescriptor", "_ANEInMemoryModel"
SURFACE, REQUEST, INFO = "_ANEIOSurfaceObject", "_ANERequest", "_ANEDeviceInfo"
OBJECT = "@16@0:8"

make_descriptor = Method(
    DESCRIPTOR, "modelWithMILText:weights:optionsPlist:", "@40@0:8@16@24@32", of_class=True
)
descriptor_id = Method(DESCRIPTOR, "hexStringIdentifier", OBJECT)
make_model = Method(MODEL, "inMemoryModelWithDescriptor:", "@24@0:8@16", of_class=True)
model_id = Method(MODEL, "hexStringIdentifier", OBJECT)
compiled_exists = Method(MODEL, "compiledModelExists", "B16@0:8", required=False)
compile_ = Method(MODEL, "compileWithQoS:options:error:", "B36@0:8I16@20^@28")
load = Method(MODEL, "loadWithQoS:options:error:", "B36@0:8I16@20^@28")
evaluate = Method(MODEL, "evaluateWithQoS:options:request:error:", "B44@0:8I16@20@28^@36")
unload = Method(MODEL, "unloadWithQoS:error:", "B28@0:8I16^@20")
attributes = Method(MODEL, "modelAttributes", OBJECT, required=False)
purge = Method(MODEL, "purgeCompiledModel", "v16@0:8", required=False)
surface_object = Method(
    SURFACE, "objectWithIOSurface:", "@24@0:8^{__IOSurface=}16", of_class=True
)
make_request = Method(
    REQUEST,
    "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:"
    "procedureIndex:",
    "@72@0:8@16@24@32@40@48@56@64",
    of_class=True,
)
has_engine = Method(INFO, "hasANE", "B16@0:8", of_class=True, required=False)
engines = Method(INFO, "numANEs", "I16@0:8", of_class=True, required=False)
cores = Method(INFO, "numANECores", "I16@0:8", of_class=True, required=False)
architecture = Method(INFO, "aneArchitectureType", OBJECT, of_class=True, required=False)
sub_type = Method(INFO, "aneSubType", OBJECT, of_class=True, required=False)
board = Method(INFO, "aneBoardType", "q16@0:8", of_class=True, required=False)

# of Foundation: public, and as they are since long
retain = Method("NSObject", "retain", OBJECT, check=False)
release = Method("NSObject", "release", "v16@0:8", check=False)
data_copied = Method("NSData", "dataWithBytes:length:", "@32@0:8^v16Q24", True, check=False)
data_shared = Method(
    "NSData", "dataWithBytesNoCopy:length:freeWhenDone:", "@36@0:8^v16Q24B32", True, check=False
)
string = Method("NSString", "stringWithUTF8String:", "@24@0:8^v16", True, check=False)
text_of = Method("NSString", "UTF8String", "*16@0:8", check=False)
number = Method("NSNumber", "numberWithInteger:", "@24@0:8q16", True, check=False)
array = Method("NSArray", "arrayWithObjects:count:", "@32@0:8^v16Q24", True, check=False)
array_count = Method("NSArray", "count", "Q16@0:8", check=False)
array_item = Method("NSArray", "objectAtIndex:", "@24@0:8Q16", check=False)
dictionary = Method(
    "NSDictionary",
    "dictionaryWithObjects:forKeys:count:",
    "@40@0:8^v16^v24Q32",
    True,
    check=False,
)
dictionary_item = Method("NSDictionary", "objectForKey:", "@24@0:8@16", check=False)
error_domain = Method("NSError", "domain", OBJECT, check=False)
error_code = Method("NSError", "code", "q16@0:8", check=False)
error_text = Method("NSError", "localizedDescription", OBJECT, check=False)

METHODS: tuple[Method, ...] = tuple(v for v in globals().values() if isinstance(v, Method))
CHECKED = tuple(method for method in METHODS if method.check)

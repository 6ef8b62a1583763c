"""An Objective-C runtime of Python, as far as the driver calls one: classes, methods with type
encodings, retain counts, autorelease pools; Foundation's plain objects; IOSurfaces.

It is strict where the real one is not: what would crash there, or read nonsense, raises
FakeCrash; each call goes through a ctypes function of the types that the caller gave: they have
to be those of the method's encoding. Encodings are written out here again on purpose.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

_P = ctypes.c_void_p
CTYPES = {
    "v": None,
    "@": _P,
    ":": _P,
    "^@": ctypes.POINTER(_P),
    "^v": _P,
    "^{__IOSurface=}": _P,
}
CTYPES |= {"B": ctypes.c_bool, "I": ctypes.c_uint, "q": ctypes.c_longlong}
CTYPES |= {"Q": ctypes.c_ulonglong, "*": ctypes.c_char_p}


class FakeCrash(BaseException):
    """The process would be gone."""


def parts(encoding: str) -> list[str]:
    """v24@0:8@16 -> v @ : @"""
    found, rest = [], encoding
    while rest:
        n = rest.index("}") + 1 if rest.startswith("^{") else 1 + rest.startswith("^")
        found.append(rest[:n])
        rest = rest[n:].lstrip("0123456789")
    return found


@attrs.define(eq=False)
class Object:
    address: int
    kind: str
    value: Any = None
    holds: list[Object] = attrs.field(factory=list)  # what it retains
    count: int = 1
    buffer: Any = None


@attrs.define(eq=False)
class IOSurface:
    memory: Any
    locks: list[int] = attrs.field(factory=list)
    released: bool = False


Implementation = Callable[..., Any]


class FakeObjc:
    """Stands for native.Native."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.objects: dict[int, Object] = {}
        self.surfaces: dict[int, IOSurface] = {}
        self.pools: list[list[Object]] = []
        self.unpooled = 0  # objects that were made where no pool was
        self.loaded: list[str] = []
        self.missing_libraries: set[str] = set()
        self.lock_status = 0
        self.calls: list[tuple[str, str]] = []
        self.encodings: dict[tuple[str, str, bool], str] = {}
        self._code: dict[tuple[str, str, bool], Implementation] = {}
        self._addresses = itertools.count(0x1000, 16)
        self._names: dict[str, int] = {}  # classes, selectors, methods
        foundation(self)

    # -- native.Native

    def load(self, library: str) -> None:
        if library in self.missing_libraries:
            msg = f"dlopen({library}): no such file"
            raise OSError(msg)
        self.loaded.append(library)

    def function(
        self, library: str, name: str, result: Any, arguments: Sequence[Any]
    ) -> Callable[..., Any]:
        return through(result, arguments, getattr(self, f"c_{name}"))

    def send(
        self, receiver: int, selector: str, result: Any, arguments: Sequence[Any], *values: Any
    ) -> Any:
        of_class = name = self._class_at(receiver)
        target: Any = name
        if not of_class:
            target = self.at(receiver)
            name = target.kind
        key = self._find(name, selector, bool(of_class))
        if key is None:
            msg = f"unrecognized selector {selector} sent to {name}"
            raise FakeCrash(msg)
        self.calls.append((name, selector))
        types = [CTYPES[part] for part in parts(self.encodings[key])]
        if [result, *arguments] != [types[0], *types[3:]]:
            msg = f"{selector} is called as {result}, {arguments}, and is {types}"
            raise FakeCrash(msg)
        return through(result, arguments, lambda *v: self._code[key](target, *v))(*values)

    # -- classes and objects

    def method(
        self, owner: str, selector: str, encoding: str, code: Implementation, cls: bool = False
    ) -> None:
        self.encodings[owner, selector, cls] = encoding
        self._code[owner, selector, cls] = code

    def _find(self, name: str, selector: str, cls: bool) -> tuple[str, str, bool] | None:
        keys = ((owner, selector, cls) for owner in (name, "NSObject"))
        return next((key for key in keys if key in self.encodings), None)

    def named(self, name: str) -> int:
        return self._names.setdefault(name, next(self._addresses))

    def name_at(self, address: int) -> str:
        return next(name for name, found in self._names.items() if found == address)

    def _class_at(self, address: int) -> str:
        names = (n for n, a in self._names.items() if a == address and n.startswith("class "))
        return next(names, "").removeprefix("class ")

    def at(self, address: int | None) -> Object:
        if not address or address not in self.objects:
            msg = f"a message to {address}, which is no living object"
            raise FakeCrash(msg)
        return self.objects[address]

    def make(self, kind: str, value: Any = None, holds: Sequence[Object] = ()) -> int:
        """An autoreleased object."""
        made = Object(next(self._addresses), kind, value, list(holds))
        for held in holds:
            held.count += 1
        self.objects[made.address] = made
        if self.pools:
            self.pools[-1].append(made)
        else:
            self.unpooled += 1
        return made.address

    def let_go(self, found: Object) -> None:
        if found.address not in self.objects:
            msg = f"a {found.kind} is released once more than it was retained"
            raise FakeCrash(msg)
        found.count -= 1
        if not found.count:
            del self.objects[found.address]
            for held in found.holds:
                self.let_go(held)

    def python(self, address: int) -> Any:
        """What an object of Foundation stands for."""
        found = self.at(address)
        if found.kind == "NSArray":
            return [item.address for item in found.holds]
        return found.value

    # -- C functions: of libobjc

    def c_objc_getClass(self, name: bytes) -> int:
        known = {owner for owner, _, _ in self.encodings}
        return self.named(f"class {name.decode()}") if name.decode() in known else 0

    def c_sel_registerName(self, name: bytes) -> int:
        return self.named(f"selector {name.decode()}")

    def _method(self, owner: int, selector: int, cls: bool) -> int:
        names = self._class_at(owner), self.name_at(selector).removeprefix("selector ")
        key = self._find(*names, cls)
        return self.named(f"method {key}") if key else 0

    def c_class_getClassMethod(self, owner: int, selector: int) -> int:
        return self._method(owner, selector, True)

    def c_class_getInstanceMethod(self, owner: int, selector: int) -> int:
        return self._method(owner, selector, False)

    def c_method_getTypeEncoding(self, method: int) -> bytes:
        name = self.name_at(method).removeprefix("method ")
        return next(e for key, e in self.encodings.items() if str(key) == name).encode()

    def c_objc_autoreleasePoolPush(self) -> int:
        self.pools.append([])
        return len(self.pools)

    def c_objc_autoreleasePoolPop(self, pool: int) -> None:
        if pool != len(self.pools):
            msg = "pools are popped in another order than they were pushed"
            raise FakeCrash(msg)
        for found in self.pools.pop():
            self.let_go(found)

    # -- of Foundation, CoreFoundation and IOSurface

    def c_NSTemporaryDirectory(self) -> int:
        return self.make("NSString", f"{self.temporary}/")

    def c_IOSurfaceCreate(self, layout: int) -> int:
        names = {self.at(key).value: value for key, value in self.python(layout).items()}
        sizes = {name: self.at(value).value for name, value in names.items()}
        assert all(self.at(value).kind == "NSNumber" for value in names.values())
        size = sizes["IOSurfaceAllocSize"]
        assert sizes["IOSurfaceBytesPerRow"] * sizes["IOSurfaceHeight"] == size
        if size > 1 << 32:
            return 0
        found = next(self._addresses)
        self.surfaces[found] = IOSurface((ctypes.c_uint8 * size)())
        return found

    def surface(self, reference: int) -> IOSurface:
        if reference not in self.surfaces or self.surfaces[reference].released:
            msg = "a surface is used after it was freed"
            raise FakeCrash(msg)
        return self.surfaces[reference]

    def c_IOSurfaceGetAllocSize(self, reference: int) -> int:
        return len(self.surface(reference).memory)

    def c_IOSurfaceLock(self, reference: int, options: int, seed: int | None) -> int:
        if not self.lock_status:
            self.surface(reference).locks.append(options)
        return self.lock_status

    def c_IOSurfaceUnlock(self, reference: int, options: int, seed: int | None) -> int:
        self.surface(reference).locks.remove(options)
        return 0

    def c_IOSurfaceGetBaseAddress(self, reference: int) -> int:
        found = self.surface(reference)
        if not found.locks:
            msg = "the memory of a surface is asked for while it is not locked"
            raise FakeCrash(msg)
        return ctypes.addressof(found.memory)

    def c_CFRelease(self, reference: int) -> None:
        self.surface(reference).released = True

    @property
    def living_surfaces(self) -> int:
        return sum(not surface.released for surface in self.surfaces.values())


def through(result: Any, arguments: Sequence[Any], code: Callable[..., Any]) -> Any:
    """A call of `code` as ctypes makes it: arguments are converted as the types say. Texts are
    given as addresses of bytes that live on."""
    raised: list[BaseException] = []
    texts: list[Any] = []

    def called(*values: Any) -> Any:
        try:
            answer = code(*values)
        except BaseException as error:
            raised.append(error)
            return None if result is None else 0
        if isinstance(answer, bytes):
            texts.append(ctypes.create_string_buffer(answer))
            answer = ctypes.addressof(texts[-1])
        return answer

    kind = _P if result is ctypes.c_char_p else result
    thunk = ctypes.CFUNCTYPE(kind, *arguments)(called)

    def call(*values: Any) -> Any:
        answer = thunk(*values)
        if raised:
            raise raised.pop()
        return ctypes.string_at(answer) if texts else answer

    return call


def foundation(fake: FakeObjc) -> None:
    """Data, strings, numbers, arrays, dictionaries, errors."""

    def retain(found: Object) -> int:
        found.count += 1
        return found.address

    def pointers(address: int | None, count: int) -> list[Object]:
        return [fake.at(a) for a in (_P * count).from_address(address or 0)] if count else []

    def dictionary(cls: str, values: int, keys: int, count: int) -> int:
        names, items = pointers(keys, count), pointers(values, count)
        found = dict(zip((n.address for n in names), (i.address for i in items), strict=True))
        return fake.make("NSDictionary", found, [*names, *items])

    def item(found: Object, key: int) -> int:
        wanted = fake.at(key).value
        return next((v for k, v in found.value.items() if fake.at(k).value == wanted), 0)

    def data(cls: str, address: int | None, count: int) -> int:
        copied = ctypes.string_at(address or 0, count) if count else b""
        return fake.make("NSData", copied)

    def shared(cls: str, address: int, count: int, free: bool) -> int:
        assert not free, "memory of Python's would be freed"
        return fake.make("NSData", (ctypes.c_uint8 * count).from_address(address))

    def string(cls: str, address: int) -> int:
        return fake.make("NSString", ctypes.string_at(address).decode())

    add = fake.method
    add("NSObject", "retain", "@16@0:8", retain)
    add("NSObject", "release", "v16@0:8", fake.let_go)
    add("NSData", "dataWithBytes:length:", "@32@0:8^v16Q24", data, True)
    no_copy = "dataWithBytesNoCopy:length:freeWhenDone:"
    add("NSData", no_copy, "@36@0:8^v16Q24B32", shared, True)
    add("NSString", "stringWithUTF8String:", "@24@0:8^v16", string, True)
    add("NSString", "UTF8String", "*16@0:8", lambda s: s.value.encode())
    integer = "numberWithInteger:"
    add("NSNumber", integer, "@24@0:8q16", lambda c, n: fake.make("NSNumber", n), True)

    def array(cls: str, items: int, count: int) -> int:
        return fake.make("NSArray", None, pointers(items, count))

    add("NSArray", "arrayWithObjects:count:", "@32@0:8^v16Q24", array, True)
    add("NSArray", "count", "Q16@0:8", lambda a: len(a.holds))
    add("NSArray", "objectAtIndex:", "@24@0:8Q16", lambda a, i: a.holds[i].address)
    make = "dictionaryWithObjects:forKeys:count:"
    add("NSDictionary", make, "@40@0:8^v16^v24Q32", dictionary, True)
    add("NSDictionary", "objectForKey:", "@24@0:8@16", item)
    add("NSError", "domain", "@16@0:8", lambda e: fake.make("NSString", e.value[0]))
    add("NSError", "code", "q16@0:8", lambda e: e.value[1])
    said = "localizedDescription"
    add("NSError", said, "@16@0:8", lambda e: fake.make("NSString", e.value[2]))

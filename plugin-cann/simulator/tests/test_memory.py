"""Rules 6 to 9: memory, copies, what the host may touch."""

import ctypes
import signal
import threading
import time
from ctypes import byref, c_int, c_size_t, c_void_p, create_string_buffer

import pytest
from simulated import D2D, D2H, H2D, H2H, Acl, simulated

MIB = 1 << 20


def used(acl: Acl) -> int:
    free, total = c_size_t(), c_size_t()
    acl.ok("aclrtGetMemInfo", 1, byref(free), byref(total))
    return total.value - free.value


@simulated()
def test_malloc_rounds_and_aligns(acl: Acl) -> None:
    acl.start()
    for size, rounded in ((1, 64), (32, 64), (33, 96), (1000, 1056)):
        before = used(acl)
        assert acl.malloc(size) % 128 == 64  # aligned to 64, and to no more
        assert used(acl) - before == rounded
    before = used(acl)
    assert acl.made("aclrtMallocAlign32", 33, 0) % 64 == 0
    assert used(acl) - before == 64
    assert acl.counted("mallocs") == 5


@simulated()
def test_malloc_refuses(acl: Acl) -> None:
    acl.start()
    place = c_void_p()
    assert acl.aclrtMalloc(byref(place), 0, 0) == 100000
    assert acl.aclrtMalloc(None, 64, 0) == 100000
    assert acl.aclrtMalloc(byref(place), 64, 9) == 100000
    assert acl.aclrtMalloc(byref(place), 2**64 - 1, 0) == 207001
    assert acl.aclrtMallocHost(byref(place), 0) == 100000
    assert acl.aclrtFree(None) == 100000
    at = acl.malloc(64)
    assert acl.aclrtFree(at + 64) == 107000
    assert acl.aclrtFreeHost(at) == 107000
    acl.ok("aclrtFree", at)
    assert acl.aclrtFree(at) == 107000


@simulated(chip="310B")
def test_policies_that_a_310b_lacks(acl: Acl) -> None:
    acl.start()
    place = c_void_p()
    codes = [acl.aclrtMalloc(byref(place), 64, policy) for policy in range(8)]
    assert codes == [0, 0, 0, *[207000] * 5]


@simulated(chip="310B")
def test_memory_ends_where_the_chips_does(acl: Acl) -> None:
    acl.start()
    place = c_void_p()
    assert acl.aclrtMalloc(byref(place), 8 << 30, 0) == 207001
    assert "8589934592" in acl.message()


@simulated(UMBEL_CANN_FAULT="memory=4096")
def test_memory_ends_where_the_fault_says(acl: Acl) -> None:
    acl.start()
    free, total = c_size_t(), c_size_t()
    acl.ok("aclrtGetMemInfo", 0, byref(free), byref(total))
    assert (free.value, total.value) == (4096, 4096)
    at = acl.malloc(4000)
    place = c_void_p()
    assert acl.aclrtMalloc(byref(place), 96, 0) == 207001
    assert acl.message().startswith("EL0004: ")
    acl.ok("aclrtFree", at)
    acl.malloc(96)


@simulated()
def test_memory_info_needs_a_context_and_a_type(acl: Acl) -> None:
    acl.ok("aclInit", None)
    free = c_size_t()
    assert acl.aclrtGetMemInfo(0, byref(free), byref(free)) == 107002
    acl.ok("aclrtSetDevice", 0)
    assert acl.aclrtGetMemInfo(12, byref(free), byref(free)) == 100000


@simulated()
def test_fresh_memory_is_junk(acl: Acl) -> None:
    acl.start()
    assert acl.read(acl.malloc(5000), 5000) == b"\xff" * 5000
    host = acl.made("aclrtMallocHost", 100)
    assert ctypes.string_at(host, 100) == b"\xff" * 100


@simulated()
def test_much_memory_costs_nothing_until_it_is_used(acl: Acl) -> None:
    acl.start()
    size = 60 << 30
    at = acl.malloc(size)
    acl.upload(at + size - 5, b"end")
    for place in (0, 4000, 16 * MIB, 5 << 30, size - 8192):
        assert acl.read(at + place, 8000) == b"\xff" * 8000
    assert acl.read(at + size - 5, 5) == b"end\xff\xff"
    acl.ok("aclrtFree", at)


@simulated(dies=signal.SIGSEGV)
def test_the_host_cannot_read_device_memory(acl: Acl) -> None:
    acl.start()
    ctypes.string_at(acl.malloc(64), 1)


@simulated(dies=signal.SIGSEGV)
def test_the_host_cannot_write_device_memory(acl: Acl) -> None:
    acl.start()
    ctypes.memset(acl.malloc(64), 0, 1)


@simulated(chip="310B")
def test_one_memory_for_host_and_device(acl: Acl) -> None:
    acl.start()
    mode = c_int(9)
    acl.ok("aclrtGetRunMode", byref(mode))
    assert mode.value == 0
    at = acl.malloc(64)
    ctypes.memset(at, 7, 64)
    assert acl.sim_at(at, 64) == at
    assert acl.read(at, 64) == b"\7" * 64
    before = used(acl)
    host = acl.made("aclrtMallocHost", 1024)
    assert used(acl) - before == 1024
    acl.ok("aclrtMemcpyAsync", host, 64, at, 64, H2H, None)
    acl.ok("aclrtSynchronizeStream", None)
    assert ctypes.string_at(host, 64) == b"\7" * 64
    assert acl.aclrtMemcpy2d(at, 8, host, 8, 8, 2, D2D) == 207000
    acl.ok("aclrtFreeHost", host)
    assert used(acl) == before


@simulated(chip="310B", UMBEL_CANN_SIMULATOR_FORM="EP")
def test_the_form_may_be_chosen(acl: Acl) -> None:
    acl.start()
    mode = c_int()
    acl.ok("aclrtGetRunMode", byref(mode))
    assert mode.value == 1
    at = acl.malloc(64)
    assert acl.sim_at(at, 64) not in (None, at)


@simulated()
def test_workers_reach_what_is_there(acl: Acl) -> None:
    acl.start()
    at = acl.malloc(64)  # of 96 bytes
    there = acl.sim_at(at, 96)
    assert there
    assert acl.sim_at(at + 32, 64) == there + 32
    assert acl.sim_at(at, 97) is None
    assert acl.sim_at(acl.made("aclrtMallocHost", 64), 64) is None
    acl.ok("aclrtFree", at)
    assert acl.sim_at(at, 1) is None


@simulated()
def test_copies_go_where_the_pointers_say(acl: Acl) -> None:
    acl.start()
    one, two = acl.malloc(100), acl.malloc(100)
    acl.upload(one, bytes(range(100)))
    acl.ok("aclrtMemcpy", two, 100, one, 100, D2D)
    assert acl.read(two + 10, 90) == bytes(range(10, 100))
    acl.ok("aclrtMemcpy", one, 100, bytes(100), 100, H2H)  # an honest pointer, another kind
    assert acl.read(one, 100) == bytes(100)
    host = create_string_buffer(100)
    acl.ok("aclrtMemcpy", host, 100, two, 100, 4)
    assert host.raw == bytes(range(100))
    names = ("h2d_bytes", "d2h_bytes", "d2d_bytes")
    assert [acl.counted(name) for name in names] == [200, 290, 100]


@simulated()
def test_copies_that_are_refused(acl: Acl) -> None:
    acl.start()
    at, host = acl.malloc(64), create_string_buffer(200)
    assert acl.aclrtMemcpy(at, 63, host, 64, H2D) == 107000
    assert acl.aclrtMemcpy(None, 64, host, 64, H2D) == 100000
    assert acl.aclrtMemcpy(at, 64, None, 64, H2D) == 100000
    assert acl.aclrtMemcpy(at, 64, host, 64, 8) == 100000
    assert acl.aclrtMemcpy(at, 64, host, 64, -1) == 100000
    assert acl.aclrtMemcpy(at, 200, host, 200, H2D) == 107000  # past the end
    assert acl.aclrtMemcpy(host, 64, host, 64, D2H) == 107017  # not the device's
    acl.ok("aclrtMemcpy", at, 0, host, 0, H2D)
    acl.ok("aclrtFree", at)
    assert acl.aclrtMemcpy(at, 64, host, 64, H2D) == 107017
    assert acl.aclrtMemcpyAsync(host, 64, host, 64, H2H, None) == 207000


@simulated()
def test_a_copy_does_not_wait_for_streams(acl: Acl) -> None:
    acl.start()
    at, pinned = acl.malloc(64), acl.made("aclrtMallocHost", 64)
    acl.upload(at, b"a" * 64)
    ctypes.memset(pinned, ord("b"), 64)
    with acl.blocked(None):
        acl.ok("aclrtMemcpyAsync", at, 64, pinned, 64, H2D, None)
        assert acl.read(at, 64) == b"a" * 64
    acl.ok("aclrtSynchronizeStream", None)
    assert acl.read(at, 64) == b"b" * 64


@simulated()
def test_only_pinned_memory_is_copied_asynchronously(acl: Acl) -> None:
    acl.start()
    at, stream, returned = acl.malloc(64), acl.stream(), threading.Event()
    pageable, pinned = create_string_buffer(64), acl.made("aclrtMallocHost", 64)

    def copy() -> None:
        acl.ok("aclrtSetDevice", 0)
        acl.ok("aclrtMemcpyAsync", at, 64, pageable, 64, H2D, stream)
        returned.set()

    with acl.blocked(stream):
        acl.ok("aclrtMemcpyAsync", pinned, 64, at, 64, D2H, stream)
        thread = threading.Thread(target=copy)
        thread.start()
        assert not returned.wait(0.05)
    thread.join()
    assert acl.read(at, 64) == bytes(64)
    assert ctypes.string_at(pinned, 64) == b"\xff" * 64


@simulated()
def test_memory_freed_under_a_task_is_a_fault(acl: Acl) -> None:
    acl.start()
    at, pinned = acl.malloc(64), acl.made("aclrtMallocHost", 64)
    with acl.blocked(None):
        acl.ok("aclrtMemcpyAsync", at, 64, pinned, 64, H2D, None)
        begun = time.monotonic()
        acl.ok("aclrtFree", at)
        assert time.monotonic() - begun < 1  # it waits for no stream
    assert acl.aclrtSynchronizeStream(None) == 507015
    assert "freed" in acl.message()


@simulated()
def test_fills(acl: Acl) -> None:
    acl.start()
    at = acl.malloc(64)
    acl.ok("aclrtMemset", at, 64, 0x1FF07, 10)
    acl.ok("aclrtMemsetAsync", at + 10, 54, 8, 10, None)
    acl.ok("aclrtSynchronizeStream", None)
    assert acl.read(at, 21) == b"\7" * 10 + b"\10" * 10 + b"\xff"
    assert acl.aclrtMemset(at, 5, 0, 6) == 107000
    assert acl.aclrtMemset(None, 5, 0, 5) == 100000
    assert acl.aclrtMemsetAsync(at, 500, 0, 500, None) == 107000


@simulated()
def test_rows(acl: Acl) -> None:
    acl.start()
    at, host = acl.malloc(64), create_string_buffer(bytes(range(12)), 12)
    acl.ok("aclrtMemset", at, 64, 0, 64)
    acl.ok("aclrtMemcpy2d", at, 5, host, 4, 2, 3, H2D)
    assert acl.read(at, 15) == bytes([0, 1, 0, 0, 0, 4, 5, 0, 0, 0, 8, 9, 0, 0, 0])
    acl.ok("aclrtMemcpy2dAsync", host, 6, at, 5, 1, 2, D2H, None)
    assert host.raw[:8] == bytes([0, 1, 2, 3, 4, 5, 4, 7])
    assert acl.aclrtMemcpy2d(at, 1, host, 4, 2, 3, H2D) == 107000


def mapped(acl: Acl, size: int) -> tuple[int, int]:
    """Physical memory of device 0, and a range."""
    properties = (ctypes.c_uint32 * 8)(0, 0, 0, 0, 1)
    place = c_void_p()
    acl.ok("aclrtReserveMemAddress", byref(place), 2 * size, 0, None, 1)
    handle = acl.made("aclrtMallocPhysical", size, properties, 0)
    return place.value or 0, handle


@simulated()
def test_ranges_and_physical_memory(acl: Acl) -> None:
    acl.start()
    properties, size = (ctypes.c_uint32 * 8)(0, 0, 0, 0, 1), c_size_t()
    acl.ok("aclrtMemGetAllocationGranularity", properties, 0, byref(size))
    assert size.value == 2 * MIB
    at, first = mapped(acl, 2 * MIB)
    second = acl.made("aclrtMallocPhysical", 2 * MIB, properties, 0)
    assert used(acl) == 4 * MIB
    acl.ok("aclrtMapMem", at, 2 * MIB, 0, first, 0)
    assert acl.sim_at(at + MIB, 2 * MIB) is None
    assert acl.aclrtMapMem(at, 2 * MIB, 0, second, 0) == 107000
    acl.ok("aclrtMapMem", at + 2 * MIB, 2 * MIB, 0, second, 0)
    assert acl.sim_at(at + MIB, 2 * MIB)  # neighbours are as one
    acl.upload(at + 2 * MIB - 2, b"abcd")
    assert acl.aclrtFreePhysical(second) == 107017
    acl.ok("aclrtUnmapMem", at)
    acl.ok("aclrtUnmapMem", at + 2 * MIB)
    assert acl.sim_at(at, 1) is None
    acl.ok("aclrtMapMem", at, 2 * MIB, 0, second, 0)  # what was in it has stayed
    assert acl.read(at, 3) == b"cd\xff"
    assert acl.aclrtReleaseMemAddress(at) == 107000
    acl.ok("aclrtUnmapMem", at)
    assert acl.aclrtUnmapMem(at) == 107000
    acl.ok("aclrtReleaseMemAddress", at)
    acl.ok("aclrtFreePhysical", first)
    acl.ok("aclrtFreePhysical", second)
    assert used(acl) == 0


@simulated(dies=signal.SIGSEGV)
def test_the_host_cannot_touch_mapped_memory(acl: Acl) -> None:
    acl.start()
    at, handle = mapped(acl, 2 * MIB)
    acl.ok("aclrtMapMem", at, 2 * MIB, 0, handle, 0)
    ctypes.string_at(at, 1)


@simulated()
def test_physical_memory_has_a_granularity(acl: Acl) -> None:
    acl.start()
    properties, place = (ctypes.c_uint32 * 8)(0, 0, 0, 0, 1), c_void_p()
    assert acl.aclrtMallocPhysical(byref(place), MIB, properties, 0) == 207000
    assert acl.aclrtReserveMemAddress(byref(place), MIB, 0, None, 0) == 107000


@simulated(chip="310B")
def test_a_chip_that_cannot_map(acl: Acl) -> None:
    acl.start()
    place = c_void_p()
    assert acl.aclrtReserveMemAddress(byref(place), 2 * MIB, 0, None, 0) == 207000


HALVES = {0x3C00: 1, 0xC000: -2, 0x0001: 2**-24, 0x7BFF: 65504, 0x7C00: 65536, 0x7E00: 98304}


@simulated()
def test_half_precision_to_float(acl: Acl) -> None:
    for half, value in HALVES.items():
        assert acl.aclFloat16ToFloat(half) == value


@simulated()
def test_float_to_half_precision(acl: Acl) -> None:
    import numpy as np

    values = np.arange(0, 65536, dtype=np.uint16).view(np.float16)
    for half in (values[0:0x400], values[0x7A00:0x7C00], values[0x8000:0x8400], values[::97]):
        finite = half[np.isfinite(half)].astype(np.float32)
        factors = np.array([1, 1.0003, 0.9995], np.float32)
        near = (finite * factors[:, None]).ravel()
        with np.errstate(over="ignore"):
            expected = near.astype(np.float16).view(np.uint16)
        assert [acl.aclFloatToFloat16(float(x)) for x in near] == expected.tolist()
    assert acl.aclFloatToFloat16(float("inf")) == 0x7C00
    assert acl.aclFloatToFloat16(float("nan")) == 0x7E00


SIZES = {0: 4, 1: 2, 2: 1, 3: 4, 4: 1, 9: 8, 11: 8, 12: 1, 17: 16, 27: 2, 29: 0, -1: 0}


@simulated()
def test_sizes_of_types(acl: Acl) -> None:
    assert {kind: acl.aclDataTypeSize(kind) for kind in SIZES} == SIZES


def test_the_tests_know_the_header() -> None:
    from simulated import prototypes

    found = {name: types for name, _, types in prototypes()}
    assert len(found) > 100
    assert found["aclrtMemcpy"] == [c_void_p, c_size_t, c_void_p, c_size_t, c_int]


@pytest.mark.parametrize("name", ["310B", "310P", "910B"])
def test_chips_are_listed(name: str) -> None:
    import umbel_cann_simulator

    assert name in umbel_cann_simulator.chips()

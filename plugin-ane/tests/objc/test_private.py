"""Programs on the private API's driver. The fixture `private` asserts that each test leaves
nothing behind: no object, no surface, no file."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ane_framework import Framework
from objc_fake import FakeCrash
from objc_programs import KIND, NBYTES, PATH, SHAPE, made, ran, scale
from umbel_ane import profile
from umbel_ane.drivers import AneError, Request
from umbel_ane.drivers.objc import Private
from umbel_ane.drivers.objc.model import Descriptor
from umbel_ane.drivers.simulator import Simulator

GIVEN = {
    name: np.random.default_rng(i).standard_normal(SHAPE, np.float32)
    for i, name in enumerate("xz")
}
COMPILE, LOAD = "compileWithQoS:options:error:", "loadWithQoS:options:error:"
EVALUATE = "evaluateWithQoS:options:request:error:"


def test_both_drivers_compute_the_same(private: Private) -> None:
    """The whole way through the fake Objective-C, against the simulator called directly."""
    simulator = Simulator(profile.load())
    results = []
    for driver in (private, simulator):
        model = made(driver)
        model.purge()
        assert not model.compiled_exists()
        model.compile()
        assert model.compiled_exists()
        model.load()
        results.append(ran(driver, model, GIVEN))
        model.release()
    for name in ("p", "d"):
        assert np.array_equal(results[0][name], results[1][name])
    x, z = (GIVEN[name].astype(np.float16) for name in "xz")
    np.testing.assert_array_equal(results[0]["d"], (x * np.float16(2) - z).astype(np.float16))
    assert private.compiles == 1


def test_a_compiled_program_is_only_loaded(private: Private) -> None:
    first = made(private)
    first.compile()
    first.release()
    again = made(private)
    assert again.compiled_exists()
    again.load()
    assert ran(private, again, GIVEN)["p"].any()
    again.release()
    assert private.compiles == 1
    assert private.cached() == [again.hex_id]
    again = made(private)
    again.purge()
    assert not again.compiled_exists()
    assert not private.cached()
    again.release()


def test_files_lie_where_the_system_reads_them(private: Private, framework: Framework) -> None:
    text, weights = scale()
    model = made(private)
    model.compile()
    folder = framework.temporary / model.hex_id
    assert (folder / "model.mil").read_bytes() == text
    assert (folder / "weights" / "w.bin").read_bytes() == weights[PATH]
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) == 2
    model.release()
    assert not folder.exists()


def test_programs_of_one_identifier_share_a_folder(
    private: Private, framework: Framework
) -> None:
    """Releasing one does not take the other's files away."""
    one, two = made(private), made(private)
    assert one.hex_id == two.hex_id
    one.compile()
    two.load()
    one.release()
    one.release()
    assert (framework.temporary / two.hex_id / "model.mil").exists()
    two.unload()
    two.load()
    two.release()


def test_another_process_keeps_the_folder(private: Private, framework: Framework) -> None:
    model = made(private)
    model.compile()
    parent = framework.temporary / "umbel-ane" / model.hex_id / str(os.getppid())
    parent.touch()
    model.release()
    folder = framework.temporary / model.hex_id
    assert folder.exists()
    assert private.clear() == 1
    assert folder.exists()
    parent.rename(parent.with_name("4194305"))  # no process has such a number
    assert not private.cached()
    private.clear()
    assert not folder.exists()


def test_a_temporary_folder_that_was_cleared(private: Private, framework: Framework) -> None:
    model = made(private)
    model.compile()
    for file in (framework.temporary / model.hex_id).rglob("*.*"):
        file.unlink()
    model.load()
    model.release()


@pytest.mark.parametrize("reread", [False, True])
def test_rewritten_weights(private: Private, framework: Framework, reread: bool) -> None:
    """Whether a load heeds them is the system's, and what it finds is what was written."""
    if reread:
        framework.simulator.profile = profile.load("permissive")
    model = made(private)
    model.compile()
    model.load()
    before = ran(private, model, GIVEN)["p"]
    model.unload()
    model.rewrite(PATH, scale(3.0)[1][PATH])
    assert (framework.temporary / model.hex_id / "weights/w.bin").read_bytes() == scale(3.0)[1][
        PATH
    ]
    model.load()
    after = ran(private, model, GIVEN)["p"]
    assert np.array_equal(before, after) != reread
    with pytest.raises(AneError, match="no weight file"):
        model.rewrite("@model_path/other.bin", b"")
    model.release()


# errors


def test_a_failed_compile_says_what_the_system_said(private: Private) -> None:
    text, weights = scale()
    model = private.descriptor(text.replace(b"sub(", b"concat("), weights)
    program = private.model(model)
    with pytest.raises(AneError) as caught:
        program.compile()
    assert caught.value.domain.startswith("com.apple.appleneuralengine")
    assert caught.value.text
    assert private.compiles == 1  # a failed one may count
    assert not private.cached()
    program.release()


def test_a_no_without_a_reason(private: Private, framework: Framework) -> None:
    """So the compile limit shows itself."""
    framework.simulator.profile = profile.read("p", {"p": LIMITED})
    model = made(private)
    model.compile()
    other = private.model(private.descriptor(scale()[0] + b" ", scale()[1]))
    with pytest.raises(AneError, match="no reason") as caught:
        other.compile()
    assert "119" in str(caught.value)
    model.release()
    other.release()


LIMITED = 'description = "one compile"\ncompile_limit = 1'


@pytest.mark.parametrize(("failures", "works"), [(1, True), (2, False)])
def test_a_load_is_tried_twice(
    private: Private, framework: Framework, failures: int, works: bool
) -> None:
    model = made(private)
    model.compile()
    framework.failures[LOAD] = failures
    if works:
        model.load()
    else:
        with pytest.raises(AneError, match="cannot be loaded") as caught:
            model.load()
        assert (caught.value.code, caught.value.text) == (6, f"{LOAD} fails")
    model.release()


def test_a_failed_evaluation(private: Private, framework: Framework) -> None:
    model = made(private)
    model.compile()
    model.load()
    framework.failures[EVALUATE] = 1
    with pytest.raises(AneError, match="cannot be evaluated"):
        ran(private, model, GIVEN)
    assert ran(private, model, GIVEN)["p"].any()
    model.release()


def test_a_failed_unload_is_told_and_leaks_nothing(
    private: Private, framework: Framework, caplog: pytest.LogCaptureFixture
) -> None:
    model = made(private)
    model.compile()
    model.load()
    framework.failures["unloadWithQoS:error:"] = 1
    with caplog.at_level(logging.WARNING, "umbel.ane"):
        model.release()
    assert "cannot be unloaded" in caplog.text


def test_what_would_crash_is_refused_before(private: Private, framework: Framework) -> None:
    """Text that is no bytes, weights that are none (constraints 9, 11), freed surfaces, gone
    programs: each is an error of ours. The fake would raise FakeCrash."""
    text, weights = scale()
    with pytest.raises(TypeError, match="str"):
        private.descriptor(text.decode(), weights)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="NoneType"):
        private.descriptor(text, None)  # type: ignore[arg-type]
    model = made(private)
    model.compile()
    model.load()
    surfaces = [private.surface(NBYTES) for _ in range(4)]
    request = Request(surfaces[:2], surfaces[2:])
    model.evaluate(request)
    surfaces[3].release()
    for again in (request, Request(surfaces[:2], surfaces[2:])):
        with pytest.raises(AneError, match="after it was released"):
            model.evaluate(again)
    with pytest.raises(AneError, match="after it was released"), surfaces[3].lock():
        pass
    model.release()
    for call in (model.load, model.compile, lambda: model.evaluate(request), model.attributes):
        with pytest.raises(AneError, match="after it was released"):
            call()
    for surface in surfaces:
        surface.release()


def test_the_fake_does_crash(framework: Framework) -> None:
    """Else the test above would prove nothing."""
    driver = Private.open(framework)
    calls = driver.calls
    with calls.pool():
        from umbel_ane.drivers.objc import encodings as m

        text, empty = calls.string("program"), calls.dictionary({})
        for given in ((text, empty, 0), (calls.data(b"program"), 0, 0)):
            with pytest.raises(FakeCrash, match="constraint"):
                calls.ask(m.make_descriptor, *given)
    with pytest.raises(FakeCrash, match="no living object"):
        calls.text(text)
    surface = driver.surface(NBYTES)
    reference = surface._reference
    surface.release()
    with pytest.raises(FakeCrash, match="freed"):
        framework.c_IOSurfaceLock(reference, 0, None)


def test_paths_that_leave_the_folder(private: Private) -> None:
    for path in ("@model_path/../w.bin", "/w.bin", "w.bin"):
        text, weights = scale()
        given = text.replace(PATH.encode(), path.encode())
        with pytest.raises(AneError, match="would not lie"):
            private.model(private.descriptor(given, {path: weights[PATH]}))
    gc.collect()


def test_weights_are_not_copied(private: Private, framework: Framework) -> None:
    """The object refers to the bytes of the caller, which live as long as it does."""
    text, weights = scale()
    mutable = bytearray(weights[PATH])
    descriptor = private.descriptor(text, {PATH: memoryview(mutable)})
    assert isinstance(descriptor, Descriptor)
    found = [o for o in framework.objects.values() if o.kind == "NSData"]
    shared = next(o.value for o in found if not isinstance(o.value, bytes))
    mutable[-1] ^= 0xFF
    assert bytes(shared) == bytes(mutable)
    del descriptor
    gc.collect()


# the order of surfaces


@pytest.mark.parametrize("order", ["description", "live", "none"])
def test_the_order_of_surfaces(
    private: Private, framework: Framework, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    framework.order = order
    model = made(private)
    model.compile()
    model.load()
    found = model.attributes()
    assert (found.inputs, found.outputs) == (("x", "z"), ("d", "p"))
    assert ("sorted by name" in caplog.text) == (order == "none")
    framework.reversed_order, framework.order = True, "description"
    assert model.attributes().inputs == ("z", "x")  # what the system says, not what we think
    model.release()


def test_a_request_is_made_once(private: Private, framework: Framework) -> None:
    model = made(private)
    model.compile()
    model.load()
    surfaces = [private.surface(NBYTES) for _ in range(4)]
    request = Request(surfaces[:2], surfaces[2:])
    for _ in range(3):
        model.evaluate(request)
    made_requests = [call for call in framework.calls if call[0] == "_ANERequest"]
    assert len([s for _, s in made_requests if s.startswith("requestWith")]) == 1
    objects = len(framework.objects)
    del request
    gc.collect()
    assert len(framework.objects) < objects  # it goes with the caller's
    again = Request(surfaces[:2], surfaces[2:])
    model.evaluate(again)
    model.unload()
    assert "_ANERequest" not in {o.kind for o in framework.objects.values()}  # nor outlives it
    model.release()
    for surface in surfaces:
        surface.release()


def test_dropped_things_go(private: Private, framework: Framework) -> None:
    """Also where nobody called release."""
    model, surface = made(private), private.surface(NBYTES)
    model.compile()
    model.load()
    assert surface.nbytes == NBYTES
    del model, surface
    gc.collect()
    assert not framework.living_surfaces


LEFT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ane_framework import Framework
from objc_programs import made
from umbel_ane.drivers import choose
from umbel_ane.drivers.objc import Private
choose.macos = lambda: "15.3"
private = Private.open(Framework(Path(sys.argv[2])))
model, surface = made(private), private.surface(65536)
model.compile()
model.load()
assert model.staged.folder.is_dir()
"""


def test_the_end_of_a_process(tmp_path: Path) -> None:
    """What it left open goes without a word, the files too."""
    command = [sys.executable, "-c", LEFT, str(Path(__file__).parent), str(tmp_path)]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("*/model.mil"))


def test_kinds_of_other_drivers(private: Private) -> None:
    other = Simulator(profile.load())
    with pytest.raises(TypeError, match="another driver"):
        private.model(other.descriptor(*scale()))
    model = made(private)
    model.compile()
    model.load()
    surfaces = [other.surface(NBYTES) for _ in range(4)]
    with pytest.raises(TypeError, match="another driver"):
        model.evaluate(Request(surfaces[:2], surfaces[2:]))
    model.release()
    assert KIND in scale()[0].decode()

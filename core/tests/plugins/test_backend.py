"""Hooks as the core calls them: bound by name, guarded, their answers checked."""

from __future__ import annotations

import threading
import timeit
import types
from contextlib import nullcontext

import pluggy
import pytest
from umbel import hookspecs
from umbel.backend import Memory
from umbel.errors import CancelledError, DeviceError, OutOfMemoryError, PluginError
from umbel.gguf.types import F32
from umbel.graph import Role, Tensor
from umbel.hookspecs import Device, DeviceInfo, Finding


def raising(error):
    def hook(device=None):
        raise error

    return hook


@pytest.mark.parametrize(
    "function",
    [
        lambda device, options, kernels: DeviceInfo(
            details={"got": (device, options, kernels)}
        ),
        lambda kernels, device, options: DeviceInfo(
            details={"got": (device, options, kernels)}
        ),
        lambda device, options=None, kernels=(): DeviceInfo(
            details={"got": (device, options, kernels)}
        ),
        lambda options, _cache={}, *, device=None: DeviceInfo(
            details={"got": ("device", options, "kernels")}
        ),
        lambda kernels: DeviceInfo(details={"got": ("device", "options", kernels)}),
    ],
)
def test_hooks_get_the_arguments_that_they_name(plugins, make, function):
    """All, fewer, in another order, or with defaults: each argument arrives by its name."""
    plugins.add("one", make("one", open=function))
    info = plugins.backends["one"].open("device", "options", "kernels")
    assert info.details["got"] == ("device", "options", "kernels")


def test_hooks_left_out_have_their_defaults(plugins, make):
    """The defaults are those that the specification names."""
    plugins.add("one", make("one"))
    one, device = plugins.backends["one"], plugins.find("one")
    told = [one.close(device), one.sync(device), one.forget(device, 1), one.cancel(device)]
    assert [*told, one.commands(None)] == [None] * 5
    lists = [one.options(), one.doctor(), one.ops(), one.architectures(), one.kernels(device)]
    assert lists == [()] * 5
    assert one.status(device) == {}


@pytest.mark.parametrize(
    "function", [lambda device, graph: None, lambda graph: None, lambda graph, device: None]
)
def test_a_bound_hook_is_called_directly(plugins, make, function):
    """In the token loop a call through pluggy would cost twice as much, and more."""
    made = make("one", graph_compute=function)
    plugins.add("one", made)
    bound, device = plugins.backends["one"].graph_compute, Device("one:0", "", 1)
    manager = pluggy.PluginManager("umbel")
    manager.add_hookspecs(hookspecs)
    manager.register(made)
    through = manager.hook.graph_compute
    costs = [
        min(timeit.repeat(call, number=2000, repeat=20))
        for call in (lambda: bound(device, None), lambda: through(device=device, graph=None))
    ]
    assert 2 * costs[0] < costs[1]


# Guards

CALLS = {
    "open": ({}, ()),
    "buffer_type": (),
    "op_supported": (None,),
    "graph_compute": (None,),
    "sync": (),
    "forget": (1,),
    "cancel": (),
    "close": (),
    "status": (),
    "kernels": (),
}


@pytest.mark.parametrize("hook", CALLS)
@pytest.mark.parametrize("error", [RuntimeError("the bus\nis gone"), SystemExit(3)])
def test_what_a_hook_raises_names_plugin_hook_and_device(plugins, row, make, hook, error):
    """It becomes a `DeviceError` with the cause chained, and `describe` shows it."""
    plugins.add("bad", make("bad", **{hook: raising(error)}), "umbel-bad", "0.3")
    device = plugins.find("bad")
    with pytest.raises(DeviceError) as caught:
        getattr(plugins.backends["bad"], hook)(device, *CALLS[hook])
    said = " ".join(str(error).split())
    text = f"failed in {hook}(bad:0): {type(error).__name__}: {said}"
    assert f"the plugin 'bad' {text}" == caught.value.what
    assert str(caught.value.where) == "umbel-bad 0.3"
    assert error is caught.value.__cause__
    assert f"{hook}(bad:0): {type(error).__name__}: {said}" == row("bad").reason
    assert "Traceback" in plugins.faults[0].detail
    assert row("host").reason == ""


@pytest.mark.parametrize("hook", ["options", "doctor", "ops", "architectures", "commands"])
def test_hooks_without_a_device_raise_plugin_errors(plugins, make, hook):
    """There is no device to name."""

    def fail():
        raise OSError("no such library")

    plugins.add("bad", make("bad", **{hook: fail}))
    arguments = (None,) if hook == "commands" else ()
    with pytest.raises(PluginError, match=rf"'bad' failed in {hook}\(\): OSError: no such lib"):
        getattr(plugins.backends["bad"], hook)(*arguments)


@pytest.mark.parametrize(
    "error", [DeviceError("out of order"), CancelledError("stopped"), KeyboardInterrupt()]
)
def test_our_own_errors_and_ctrl_c_pass_unchanged(plugins, make, error):
    """They are said on purpose, and are no fault of the plugin."""
    plugins.add("one", make("one", graph_compute=raising(error)))
    with pytest.raises(type(error)) as caught:
        plugins.backends["one"].graph_compute(plugins.find("one"), None)
    assert error is caught.value
    assert plugins.faults == []


@pytest.mark.parametrize(
    ("hook", "answer", "reason"),
    [
        ("open", None, "it returned None, expected DeviceInfo"),
        ("op_supported", False, r"it returned False, expected str \| None"),
        ("op_supported", True, r"it returned True, expected str \| None"),
        ("buffer_type", None, "it returned None, expected BufferType"),
        ("buffer_type", types.SimpleNamespace(alignment=64), "expected BufferType"),
        ("status", ["hot"], r"it returned \['hot'\], expected Mapping"),
        ("kernels", [1], r"it returned \[1\], expected Sequence\[Kernel\]"),
    ],
)
def test_answers_of_the_wrong_kind_are_refused(plugins, make, hook, answer, reason):
    """A False would otherwise read as "supported", a None fail far from its cause."""
    plugins.add("bad", make("bad", **{hook: lambda device: answer}))
    with pytest.raises(DeviceError, match=rf"'bad' failed in {hook}\(bad:0\): .*{reason}"):
        getattr(plugins.backends["bad"], hook)(plugins.find("bad"), *CALLS[hook])


@pytest.mark.parametrize(
    ("hook", "name", "value"),
    [
        *(("open", "compute_dtype", value) for value in ("q4_0", "i32", "F32", None)),
        *(("open", "token_buckets", value) for value in ((0,), [8], 8, (1.5,), (True,))),
        *(("open", "length_buckets", value) for value in ((256, -1), None, "256")),
        *(("buffer_type", "alignment", value) for value in (0, -64, None, 1.5)),
    ],
)
def test_values_that_a_device_cannot_have_are_refused(plugins, row, make, hook, name, value):
    """They would fail far from here: the error names plugin, hook and value."""

    def buffer_type(device):
        kind = make("other").buffer_type(device)
        setattr(kind, name, value)
        return kind

    answers = {"open": lambda device: DeviceInfo(**{name: value}), "buffer_type": buffer_type}
    plugins.add("bad", make("bad", **{hook: answers[hook]}))
    with pytest.raises(DeviceError) as caught:
        plugins.open(plugins.find("bad"))
    said = f"{hook}(bad:0): ValueError: {name} is {value!r}, expected "
    assert caught.value.what.startswith(f"the plugin 'bad' failed in {said}")
    assert row("bad").reason.startswith(said)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(MemoryError("full"), OutOfMemoryError), (RuntimeError("bus"), DeviceError)],
)
@pytest.mark.parametrize("method", ["alloc_size", "accepts", "allocate", "store"])
def test_what_memory_raises_names_the_device(make, method, error, kind):
    """Whatever it was; our own errors pass unchanged, and attributes are what they are."""
    plain = make("one").buffer_type(None)
    memory = Memory(plain, Device("one:0", "", 1), nullcontext())
    setattr(plain, method, raising_any(error))
    with pytest.raises(DeviceError, match=f"one:0 failed in {method}: ") as caught:
        getattr(memory, method)(1, 2)
    assert (kind, error) == (type(caught.value), caught.value.__cause__)
    own = DeviceError("said on purpose")
    setattr(plain, method, raising_any(own))
    with pytest.raises(DeviceError) as caught:
        getattr(memory, method)(1, 2)
    assert own is caught.value
    assert (64, False) == (memory.alignment, memory.is_host)


@pytest.mark.parametrize(
    ("method", "locked"), [("allocate", True), ("store", True), ("accepts", False)]
)
def test_memory_is_taken_under_the_lock(make, method, locked):
    """Questions are answered at any time; an error that names no place gets one."""
    plain, lock, held = make("one").buffer_type(None), threading.Lock(), []

    def full(*args):
        held.append(lock.locked())
        raise OutOfMemoryError("full")

    setattr(plain, method, full)
    memory = Memory(plain, Device("one:0", "", 1), lock)
    for given, where in ((Tensor((2,), F32, Role.WEIGHT, "w"), "w"), (7, method)):
        with pytest.raises(OutOfMemoryError) as caught:
            getattr(memory, method)(given)
        assert f"{where} on one:0" == caught.value.where
    assert [locked] * 2 == held
    assert not lock.locked()


def raising_any(error):
    def method(*args):
        raise error

    return method


def test_a_list_of_findings_is_not_one_text(plugins, make):
    """A text is a sequence of texts, too."""
    plugins.add("bad", make("bad", doctor=lambda: "all is well"))
    with pytest.raises(PluginError, match=r"expected Sequence\[Finding\]"):
        plugins.backends["bad"].doctor()


def test_a_fault_that_repeats_is_kept_once(plugins, make):
    """A server that fails at each step does not fill the memory with faults."""
    plugins.add("bad", make("bad", sync=raising(RuntimeError("again"))))
    for _ in range(100):
        with pytest.raises(DeviceError):
            plugins.backends["bad"].sync(plugins.find("bad"))
    assert len(plugins.faults) == 1


def test_ask_leaves_out_who_fails(plugins, make):
    """The others' answers arrive, the fault is kept with the first reason."""
    plugins.add("bad", make("bad", doctor=raising(RuntimeError("no /proc"))))
    plugins.add("good", make("good", doctor=lambda: [Finding("ok", "it is in")]))
    answers = {b.name: answer for b, answer in plugins.ask("doctor")}
    assert [finding.what for finding in answers["good"]] == ["it is in"]
    assert "bad" not in answers
    assert [f.reason for f in plugins.faults] == ["doctor(): RuntimeError: no /proc"]

"""Loading: what is taken in, what is refused, and why."""

from __future__ import annotations

import attrs
import pytest
from umbel import plugins as module
from umbel.errors import PluginError
from umbel.graph import Operation, Spec
from umbel.hookspecs import hookimpl

HOOKS = ("devices", "open", "buffer_type", "op_supported", "graph_compute")


def test_nothing_is_loaded_before_it_is_asked_for(plugins):
    """A new object holds no backend."""
    assert plugins.backends == {}


def test_the_host_is_built_in(plugins):
    """Without any plugin there is the host, and `auto` takes it."""
    assert plugins.find().name == "host:0"
    ((source, reason, devices),) = plugins.describe()
    assert ("host", "built in", "") == attrs.astuple(source)
    assert ("", ["host:0"]) == (reason, devices)


def test_get_is_one_object_for_the_process():
    """Everybody asks the same plugins."""
    assert module.get() is module.get()


def test_loading_twice_is_a_no_op(plugins, make):
    """The second load and the second add of the same object change nothing."""
    same = make("one")
    plugins.add("one", same)
    plugins.load()
    before = dict(plugins.backends)
    plugins.load()
    plugins.add("one", same)
    assert before == plugins.backends
    assert plugins.faults == []


def test_two_objects_cannot_have_one_name(plugins, make):
    """The second is refused, and told who has the name."""
    plugins.add("one", make("one"), "first-dist", "1.2")
    with pytest.raises(PluginError, match=r"first-dist 1\.2 is loaded as 'one' already"):
        plugins.add("one", make("one"))


def test_an_object_can_be_a_plugin(plugins):
    """Hooks may be methods; they are called bound."""

    class Thing:
        UMBEL_API = 1

        def __init__(self):
            self.seen = []

        @hookimpl
        def ops(self):
            self.seen.append("ops")
            return []

    thing = Thing()
    plugins.add("thing", thing)
    plugins.ask("ops")
    assert thing.seen == ["ops"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"api": 2}, "it declares UMBEL_API 2; Umbel .* needs UMBEL_API 1"),
        ({"api": "1"}, "it declares UMBEL_API '1'; Umbel .* needs UMBEL_API 1"),
        ({"api": None}, "it declares no UMBEL_API; Umbel .* needs UMBEL_API 1"),
        ({"graph_compte": lambda device: None}, "unknown hook 'graph_compte'"),
        (
            {"open": lambda device, optoins: None},
            r"'bad' for hook 'open'.*\{'optoins'\} are declared in the hookimpl but",
        ),
        ({"without": ("open", "op_supported")}, "it lacks the hooks open, op_supported;"),
        ({"without": HOOKS}, "it lacks the hooks devices, open, .*marked"),
    ],
)
def test_a_faulty_plugin_is_refused_with_the_reason(plugins, make, change, reason):
    """Wrong API number, misspelt hook, unknown argument, missing hooks: each is named."""
    with pytest.raises(PluginError, match=reason):
        plugins.add("bad", make("bad", **change))
    plugins.add("good", make("good"))
    assert sorted(b.name for b, _ in plugins.ask("options")) == ["good", "host"]


def test_an_entry_point_to_none_is_refused(plugins):
    """pluggy itself takes None for a plugin, without a word."""
    with pytest.raises(PluginError, match="it declares no UMBEL_API"):
        plugins.add("bad", None)


def test_a_refused_plugin_leaves_nothing_behind(plugins, make):
    """The mended plugin can take the name, and the misspelt hook does not haunt it."""
    with pytest.raises(PluginError):
        plugins.add("one", make("one", synk=lambda device: None))
    plugins.add("one", make("one"))
    assert plugins.find("one").name == "one:0"


def test_a_plugin_can_be_refused_later(plugins, row, make):
    """What it brings may turn out to be unusable: it is as if it had not been loaded."""
    plugins.add("one", make("one", priority=9))
    assert plugins.find().name == "one:0"
    plugins.refuse(plugins.backends["one"], "ops()", PluginError("'add' exists already"))
    assert plugins.find().name == "host:0"
    assert row("one").reason == "ops(): 'add' exists already"
    with pytest.raises(PluginError, match=r"'one' cannot be used: ops\(\): 'add' exists"):
        plugins.find("one")


def test_an_optional_hook_of_a_later_version_is_ignored(plugins, make):
    """A plugin may mark a hook that this core does not know yet as optional."""
    made = make("one")
    made.warm_up = hookimpl(lambda device: None, optionalhook=True)
    plugins.add("one", made)
    assert plugins.find("one").name == "one:0"


def test_a_plugin_without_devices_needs_no_hooks_for_them(plugins, row, make):
    """Operations, models and kernels can come from a plugin that has no hardware."""
    twice = Operation("twice", lambda x: Spec(x.shape, x.dtype), lambda x: 2 * x)
    plugins.add("extras", make("extras", without=HOOKS, ops=lambda: [twice]))
    assert ("extras", [twice]) in [(b.name, ops) for b, ops in plugins.ask("ops")]
    assert row("extras").devices == []

"""Broken distributions of every kind, installed together: each is named, none harms another."""

from __future__ import annotations

import json
import re

import pytest

HOOKS = "from umbel.hookspecs import hookimpl\nUMBEL_API = 1\n"
BROKEN = {  # name: (what its module holds, what is said of it)
    "import": ("import no_such_lib", "ModuleNotFoundError: No module named 'no_such_lib'"),
    "exit": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "syntax": ("def (:", r"File .*eng_syntax\.py.* SyntaxError: invalid syntax"),
    "library": ("import ctypes\nctypes.CDLL('libnosuch.so')", r"OSError: libnosuch\.so: "),
    "api": ("UMBEL_API = 2", r"it declares UMBEL_API 2; Umbel \S+ needs UMBEL_API 1"),
    "noapi": ("", r"it declares no UMBEL_API; Umbel \S+ needs UMBEL_API 1"),
    "nohook": ("UMBEL_API = 1", "it lacks the hooks devices, .*marked with `hookimpl`"),
    "misspelt": (
        HOOKS + "@hookimpl\ndef graph_compte(device, graph):\n    pass",
        "unknown hook 'graph_compte' in plugin <module 'eng_misspelt'",
    ),
    "argument": (
        HOOKS + "@hookimpl\ndef close(devcie):\n    pass",
        r"hook 'close'.*\{'devcie'\} are declared in the hookimpl but",
    ),
}
TARGETS = {  # name: (the entry point's value, what is said of it)
    "attribute": ("eng_targets:Pluginn", "AttributeError: module 'eng_targets' has no attr"),
    "module": ("eng_tragets", "ModuleNotFoundError: No module named 'eng_tragets'"),
    "blank": ("eng targets:plugin", "AttributeError"),
    "empty": ("", "AttributeError|ValueError"),
}
SCRIPT = """
import json, sys

import attrs
from umbel import plugins
from umbel.errors import UmbelError

early = [name for name in sys.modules if name.startswith("eng_")]
found = plugins.get()
errors = {}
for source, *_ in found.describe():
    try:
        opened = found.open(found.find(source.name))
        if source.name != "host":
            opened.hooks.graph_compute(opened.device, None)
    except UmbelError as error:
        errors[source.name] = [type(error).__name__, str(error)]
rows = [
    {**attrs.asdict(source), "reason": reason, "devices": devices}
    for source, reason, devices in found.describe()
]
print(json.dumps({"early": early, "rows": rows, "errors": errors, "auto": found.find().name}))
"""


@pytest.fixture(scope="module")
def said(shared_site, backend):
    """What one process says that has all of them installed, and a good one."""
    site = shared_site
    for name, (text, _) in BROKEN.items():
        site.add_plugin(name, text)
    entries = "\n".join(f"{name} = {value}" for name, (value, _) in TARGETS.items())
    site.add("eng-targets", entries, "eng_targets")
    site.add("eng-twin", "twin = eng_twin", "eng_twin", "raise SystemExit")
    site.add("eng-twin-fork", "twin = eng_fork", "eng_fork", "raise SystemExit")
    site.add("eng-usurper", "host = eng_usurper", "eng_usurper", "raise SystemExit")
    site.add("eng-garbled", "garbled")
    site.add("eng-latin", "latin = caf\xe9".encode("latin-1"))
    site.add_plugin("computing", backend + "    raise RuntimeError('kernel died')\n", 1000)
    site.add_plugin(
        "asking", backend.replace("return [", "raise RuntimeError('no bus')\n    [")
    )
    site.add_plugin("good", "print('welcome')\n" + backend, priority=5)
    done = site.run(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "welcome" in done.stderr
    return json.loads(done.stdout)  # which fails, had any plugin printed to stdout


def row(said, name, distribution=None):
    rows = [r for r in said["rows"] if r["name"] == name]
    return next(r for r in rows if distribution in (None, r["distribution"]))


def test_nothing_is_imported_with_umbel(said):
    """`import umbel.plugins` looks for no plugin."""
    assert said["early"] == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_plugin_that_does_not_load_is_named_with_the_reason(said, name):
    """Its distribution, its entry point and the cause stand in one line."""
    failed = row(said, name)
    assert (f"eng-{name}", "1.0", []) == (
        failed["distribution"],
        failed["version"],
        failed["devices"],
    )
    assert re.search(f"^{name} = eng_{name}: .*{BROKEN[name][1]}", failed["reason"])
    assert "\n" not in failed["reason"]


@pytest.mark.parametrize("name", BROKEN)
def test_asking_for_it_by_name_raises_its_reason(said, name):
    """The user who named it is told why it is not there."""
    kind, text = said["errors"][name]
    assert kind == "PluginError"
    assert re.search(f"the plugin '{name}' cannot be used: .*{BROKEN[name][1]}", text)
    assert f"where: eng-{name} 1.0" in text


@pytest.mark.parametrize("name", TARGETS)
def test_a_wrong_target_is_named(said, name):
    """An entry point that leads nowhere, or is none, is shown as it stands in the file."""
    failed = row(said, name, "eng-targets")
    assert re.search(f"^{name} = {TARGETS[name][0]}: ({TARGETS[name][1]})", failed["reason"])


@pytest.mark.parametrize("distribution", ["eng-twin", "eng-twin-fork"])
def test_of_two_plugins_with_one_name_neither_loads(said, distribution):
    """Both distributions are named; their modules would have raised another error."""
    reason = row(said, "twin", distribution)["reason"]
    assert "eng-twin 1.0" in reason
    assert "eng-twin-fork 1.0" in reason
    assert "both offer 'twin'; uninstall one" in reason
    assert "both offer 'twin'" in said["errors"]["twin"][1]


def test_a_plugin_cannot_take_the_place_of_the_host(said):
    """It is refused, and the built-in one stays."""
    reason = row(said, "host", "eng-usurper")["reason"]
    assert "built in and eng-usurper 1.0 both offer 'host'" in reason
    host = row(said, "host", "built in")
    assert (host["reason"], host["devices"]) == ("", ["host:0"])


@pytest.mark.parametrize("name", ["eng_garbled-1.0.dist-info", "eng_latin-1.0.dist-info"])
def test_an_unreadable_list_of_entry_points_is_named(said, name):
    """A file that is no entry point list, or no UTF-8, names the distribution's folder."""
    failed = row(said, name)
    assert re.match(r"entry_points\.txt: (TypeError|ValueError|Unicode)", failed["reason"])


def test_a_plugin_that_fails_to_compute_is_named(said):
    """It loads and opens; the failure names plugin, hook and device."""
    kind, text = said["errors"]["computing"]
    assert kind == "DeviceError"
    call = "graph_compute(computing:0): RuntimeError: kernel died"
    assert f"the plugin 'computing' failed in {call}" in text
    assert call == row(said, "computing")["reason"]


def test_a_plugin_that_fails_to_list_its_devices_is_named(said):
    """It has none, then."""
    assert row(said, "asking")["reason"] == "devices(): RuntimeError: no bus"
    assert said["errors"]["asking"][0] == "PluginError"


def test_the_good_plugin_and_the_host_work_beside_them_all(said):
    """Nobody else's fault reaches them; `auto` goes by priority among what works."""
    assert (
        row(said, "good")["reason"],
        row(said, "good")["distribution"],
        row(said, "good")["devices"],
    ) == ("", "eng-good", ["good:0"])
    assert "good" not in said["errors"]
    assert said["auto"] == "computing:0"

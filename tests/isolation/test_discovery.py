"""How installed plugins are found, limited and interrupted."""

from __future__ import annotations

import pytest

LIST = """
from umbel import plugins
for source, reason, _ in plugins.get().describe():
    if source.distribution.startswith(("built in", "eng", "not installed")):
        print(source.name, source.distribution, reason, sep="|")
"""


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("", {"host|built in|"}),
        ("a", {"host|built in|", "a|eng-a|"}),
        (" b , a,,", {"host|built in|", "a|eng-a|", "b|eng-b|"}),
        ("host", {"host|built in|"}),
        (
            "gpu",
            {
                "host|built in|",
                "gpu|not installed|UMBEL_PLUGINS: no installed distribution offers it",
            },
        ),
    ],
)
def test_the_environment_limits_what_is_loaded(site, backend, limit, expected):
    """Only the named plugins are imported; a name that nobody offers is a fault."""
    for name in ("a", "b"):
        site.add_plugin(name, backend)
    site.add_plugin("c", "raise SystemExit('imported, but not asked for')")
    done = site.run(LIST, UMBEL_PLUGINS=limit)
    assert expected == set(done.stdout.splitlines())


def test_a_distribution_that_is_seen_twice_counts_once(site, backend, tmp_path):
    """As with a lib64 that links to lib: the same metadata is on the path two times."""
    site.add_plugin("a", backend)
    (tmp_path / "other").symlink_to(site.folder)
    code = f"import sys; sys.path.append({str(tmp_path / 'other')!r}){LIST}"
    assert site.run(code).stdout.splitlines() == ["host|built in|", "a|eng-a|"]


def test_an_older_version_behind_counts_for_nothing(site, backend, tmp_path):
    """Python imports the first one on the path; they are no rivals for the name."""
    site.add_plugin("a", backend)
    behind = type(site)(tmp_path / "behind")
    behind.add_plugin("a", "raise SystemExit")
    about = behind.folder / "eng_a-1.0.dist-info" / "METADATA"
    about.write_text(about.read_text().replace("1.0", "0.9"))
    code = f"import sys; sys.path.append({str(behind.folder)!r}){LIST}"
    assert site.run(code).stdout.splitlines() == ["host|built in|", "a|eng-a|"]


def test_a_distribution_without_metadata_is_called_by_its_folder(site, backend):
    """It may be half uninstalled, but what it offers can still be loaded."""
    site.add("eng-a", "a = eng_a", "eng_a", backend.replace("{name}", "a"), metadata=False)
    text = site.folder / "eng_a.py"
    text.write_text(text.read_text().replace("{priority}", "1"))
    assert "a|eng_a-1.0.dist-info|" in site.run(LIST).stdout.splitlines()


def test_the_order_of_installation_decides_nothing(site, backend):
    """The best priority wins, and among equals the first name."""
    for name, priority in (("z", 1007), ("b", 1009), ("a", 1009), ("y", 1008)):
        site.add_plugin(name, backend, priority)
    code = "from umbel import plugins\nprint([d.name for d in plugins.get().devices()][:4])"
    assert site.run(code).stdout == "['a:0', 'b:0', 'y:0', 'z:0']\n"


def test_ctrl_c_during_an_import_passes(site, backend):
    """It ends the loading; asked again, the plugins load that were not reached."""
    site.add_plugin("a", "import os\nif 'AGAIN' not in os.environ: raise KeyboardInterrupt")
    site.add_plugin("b", backend)
    code = f"""
import os
from umbel import plugins
try:
    plugins.get().load()
except KeyboardInterrupt:
    print("interrupted", *plugins.get().backends)
    os.environ["AGAIN"] = "1"
{LIST}"""
    lines = site.run(code).stdout.splitlines()
    assert lines[:3] == ["interrupted host", "host|built in|", "b|eng-b|"]
    assert "a|eng-a|a = eng_a: it declares no UMBEL_API" in lines[3]


def test_a_plugin_may_ask_for_the_plugins_while_it_is_imported(site, backend):
    """It sees those that are there so far, and nothing loops."""
    site.add_plugin("a", "from umbel import plugins\nplugins.get().load()\n" + backend)
    assert "a|eng-a|" in site.run(LIST).stdout.splitlines()

"""The options of the conformance suite. Nothing of Umbel is imported before a test asks for it.

pytest loads this module in every run where the kit is installed.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("umbel", "conformance of Umbel backends")
    group.addoption("--umbel-device", default="host", metavar="NAME", help="as `umbel devices`")
    text = "an option of its backend; repeatable"
    group.addoption("--umbel-option", action="append", default=[], metavar="B.N=V", help=text)
    text = "a module with more: CASES of operations, MODELS of architectures; repeatable"
    group.addoption("--umbel-cases", action="append", default=[], metavar="MODULE", help=text)
    text = "time each operation, and list the times at the end"
    group.addoption("--umbel-perf", action="store_true", help=text)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for title, rows in config.stash.get(TIMES, {}).items():
        terminalreporter.section(f"time per operation on {title}")
        for row in sorted(rows):
            terminalreporter.write_line(row)
    reasons = config.stash.get(REFUSED, {})
    if reasons:
        terminalreporter.section("not supported: tests, reason")
        for reason, cases in sorted(reasons.items()):
            terminalreporter.write_line(f"{len(cases):5} {reason}")


TIMES = pytest.StashKey[dict[str, list[str]]]()  # device -> lines
REFUSED = pytest.StashKey[dict[str, list[str]]]()  # reason -> tests

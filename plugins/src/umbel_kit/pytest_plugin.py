"""The options of the conformance suite. Nothing of Umbel is imported before a test asks for it.

pytest loads this module in every run where the kit is installed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

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
    answers = config.stash.get(ANSWERS, None)
    if answers is not None:
        answers.show(terminalreporter)


@dataclass
class Answers:
    """What the device said of the cases that it did not take as they are, one of each test."""

    dtype: str  # in which it computes
    asked: int = 0
    formed: list[str] = field(default_factory=list)  # "decomposed: reason"
    refused: list[str] = field(default_factory=list)

    def show(self, reporter: pytest.TerminalReporter) -> None:
        for title, reasons in (
            ("in another form: tests, form, reason", self.formed),
            ("not supported: tests, reason", self.refused),
        ):
            if reasons:
                reporter.section(title)
            for reason, n in sorted(Counter(reasons).items()):
                reporter.write_line(f"{n:5} {reason}")
        if self.asked >= MANY and len(self.refused) >= NEARLY_ALL * self.asked:
            share = f"{len(self.refused)} of {self.asked} cases were refused"
            sees = f"activations in compute_dtype ({self.dtype}), weights as `accepts` says"
            reporter.write_line(f"{share}: `op_supported` is shown {sees}")


MANY, NEARLY_ALL = 10, 0.95
TIMES = pytest.StashKey[dict[str, list[str]]]()  # device -> lines
ANSWERS = pytest.StashKey[Answers]()
MODEL = pytest.StashKey[str]()  # the file that was used last

"""What an answer must be where the request demands a call.

The marks are spelled out: no grammar holds control tokens, and the parser reads text. Thoughts
have no place in it, so the prompt must not have opened them.
"""

from __future__ import annotations

from collections.abc import Sequence

from umbel.server.tools.families import Family
from umbel.server.tools.offers import Choice, Tool
from umbel.server.tools.schemas import literal

MOST_CALLS = 16  # a grammar that never ends is one that small models follow for ever


def constraint(
    family: Family, tools: Sequence[Tool], choice: Choice, parallel: bool
) -> tuple[str, str] | None:
    """The field of `Settings` and its text; None: the model is free."""
    if choice.mode != "required":
        return None
    around = family.layout
    chosen = [tool for tool in tools if tool.name in choice.names]
    more = f" ({literal(around.between)} one){{0,{MOST_CALLS - 1}}}" if parallel else ""
    rules = [
        f"start: {literal(around.head)} one{more} {literal(around.tail)}",
        f"one: {literal(around.before)} any {literal(around.after)}",
        f"any: {' | '.join(f'tool_{i}' for i in range(len(chosen)))}",
    ]
    for i, tool in enumerate(chosen):
        rules += family.form.rules(tool, f"tool_{i}")
    return "grammar", "\n".join(rules)

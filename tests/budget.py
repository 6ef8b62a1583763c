"""Counts the lines of code of the core: blank lines, comments and docstrings are not code.

    python tests/budget.py [-v]

The engine is to stay under 6,500 lines, so that one reader can know all of it. Leaves are not
counted: a command, an extra or a backend can be read, or left, by itself.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

LIMIT = 6500
LEAVES = ("cli", "server", "tools", "extras", "host")
SOURCE = Path(__file__).parents[1] / "core" / "src"
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """The number of lines on which a token of code stands."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def main() -> int:
    counts = {p: code_lines(p.read_text("utf-8")) for p in sorted(SOURCE.rglob("*.py"))}
    rooms: dict[str, int] = {}
    for path, n in counts.items():
        room = path.relative_to(SOURCE / "umbel").parts[0]
        rooms[room] = rooms.get(room, 0) + n
    if "-v" in sys.argv:
        for room, n in sorted(rooms.items(), key=lambda item: -item[1]):
            print(f"{n:6} {room}{' (a leaf)' if room in LEAVES else ''}")
    leaves = sum(rooms.get(leaf, 0) for leaf in LEAVES)
    total = sum(rooms.values()) - leaves
    print(f"{total} lines of code in the engine, to stay under {LIMIT}; {leaves} in leaves")
    if total >= LIMIT:
        print("The engine is full: simplify something, or move it to a plugin or an extra.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs barrier.pml through spin: the barrier holds, and each mutant of it is caught.

Needs `spin` (Debian's package of that name) and a C compiler.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = Path(__file__).with_name("barrier.pml")
SHAPES = ((2, 2), (3, 1))  # nodes, threads on each
MUTANTS = {
    1: "arrivals on a node release nothing",
    2: "arrivals where nodes meet release nothing",
    3: "letting a node go releases nothing",
    4: "waiting acquires nothing",
    5: "arriving acquires nothing",
    6: "a sleeper leaves no mark",
    7: "the kernel does not compare before it puts to sleep",
    8: "sleepers are woken before their mark is cleared",
    9: "a node does not wait for the others",
}


def explore(nodes: int, size: int, mutant: int = 0) -> tuple[str, int]:
    """What the exhaustive search found wrong ("" for nothing), and in how many states."""
    macros = (f"-DNODES={nodes}", f"-DSIZE={size}", f"-DMUTANT={mutant}")
    with tempfile.TemporaryDirectory() as folder:
        generate = ["spin", *macros, "-a", str(MODEL)]
        subprocess.run(generate, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        compiler = os.environ.get("CC", "cc")
        compile_ = [compiler, "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"]
        subprocess.run(compile_, cwd=folder, check=True)
        search = subprocess.run(
            ["./pan", "-m100000"], cwd=folder, check=True, capture_output=True, text=True
        ).stdout
    if "Search not completed" in search and "errors: 0" in search:
        raise SystemExit(search)
    states = int(re.findall(r"(\d+) states, stored", search)[0])
    wrong = re.findall(r"pan:1: (.*?) \(at depth", search)
    if ("errors: 0" in search) != (not wrong):
        raise SystemExit(search)
    return (wrong[0].partition(" (")[0] if wrong else ""), states


def main() -> int:
    if shutil.which("spin") is None:
        msg = "spin is not here: apt-get install spin"
        raise SystemExit(msg)
    failed = False
    for nodes, size in SHAPES:
        wrong, states = explore(nodes, size)
        failed = failed or bool(wrong)
        print(f"{nodes} nodes x {size}: {wrong or 'holds'} ({states} states)", flush=True)
    print("mutants, each to be caught:")
    for mutant, name in MUTANTS.items():
        wrong, states = explore(2, 2, mutant)
        failed = failed or not wrong
        print(f"  {name}: {wrong or 'NOT CAUGHT'} ({states} states)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

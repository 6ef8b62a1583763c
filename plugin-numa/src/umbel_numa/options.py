"""The options of this backend: `-O numa.mode=mirror`."""

from umbel.hookspecs import Option

from umbel_numa.topology import MODES

EXPERTS = ("rows", "whole")
YES = ("true", "false")


def _yes(text: str) -> bool:
    return text == "true"


def _count(text: str) -> int:
    """A number of threads, which may be too high; a ValueError at anything else."""
    number = int(text)
    if number < 0:
        msg = f"{number} is below 0"
        raise ValueError(msg)
    return number


OPTIONS = (
    Option("threads", "threads that compute; 0: one for each physical core", 0, _count),
    Option("threads_prefill", "threads that read prompts; 0: as many", 0, _count),
    Option("mode", "how threads and weights are dealt over NUMA nodes", "auto", choices=MODES),
    Option("experts", "a node's part of a mixture of experts", "rows", choices=EXPERTS),
    Option("precise", "activations stay float32: slower, exact", False, _yes, YES),
)

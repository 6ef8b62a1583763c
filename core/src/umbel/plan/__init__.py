"""Graph to plan: place, decompose, split, allocate, run."""

from umbel.plan.memory import Arenas, States, Target, Weights
from umbel.plan.place import Placer
from umbel.plan.plan import Plan, Stop, make

__all__ = ["Arenas", "Placer", "Plan", "States", "Stop", "Target", "Weights", "make"]

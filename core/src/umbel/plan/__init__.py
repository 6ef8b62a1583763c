"""Graph to plan: place, decompose, split, allocate, run."""

from umbel.plan.memory import Arenas, States, Target, Weights
from umbel.plan.place import Placer
from umbel.plan.plan import Plan, make

__all__ = ["Arenas", "Placer", "Plan", "States", "Target", "Weights", "make"]

"""A Neural Engine of NumPy that breaks what the real ones are reported to break.

It stands behind the same protocol as the real driver. What it accepts and how it fails is a
profile's; it proves nothing about hardware, only that a program keeps the known rules.

Two variables: UMBEL_ANE_FAULT asks for faults (faults.py), UMBEL_ANE_SIMULATOR_REPORT names a
file into which the counters are written at the end.
"""

from umbel_ane.drivers.simulator.checks import CONSTRAINTS, LIMITS, Made, Rule
from umbel_ane.drivers.simulator.clock import reset
from umbel_ane.drivers.simulator.driver import Simulator
from umbel_ane.drivers.simulator.faults import SimulatedCrash

__all__ = ["CONSTRAINTS", "LIMITS", "Made", "Rule", "SimulatedCrash", "Simulator", "reset"]

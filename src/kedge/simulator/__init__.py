"""The simulator: a whole federation on one machine."""

from kedge.simulator.simulation import Counters, Settings, Simulation

__all__ = ["Counters", "Settings", "Simulation"]

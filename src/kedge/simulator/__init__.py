"""The simulator: a whole federation on one machine."""

from kedge.settings import Settings
from kedge.simulator.simulation import Answer, Simulation

__all__ = ["Answer", "Settings", "Simulation"]

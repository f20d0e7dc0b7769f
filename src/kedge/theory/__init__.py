"""The paper's theory as a tool: rates, settings from the theorems, measured constants, the proof's quantities in a run.

What it says and how it was checked is in docs/theory.md.
"""

from kedge.theory.advice import Advice, Trial, advise, try_rates
from kedge.theory.constants import Constants
from kedge.theory.diagnostics import Diagnose
from kedge.theory.measuring import At, Measured, measure
from kedge.theory.tables import RATES, Rate, rates
from kedge.theory.theorems import Condition, TheorySettings, settings

__all__ = [
    "RATES",
    "Advice",
    "At",
    "Condition",
    "Constants",
    "Diagnose",
    "Measured",
    "Rate",
    "TheorySettings",
    "Trial",
    "advise",
    "measure",
    "rates",
    "settings",
    "try_rates",
]

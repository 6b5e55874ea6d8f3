"""Exercises on rooflines, and a checker that says what a wrong answer forgot.

    from costir import exercises
    exercises.check("rl.q1", "2*B*D*F/(B*D + D*F)", part="intensity")

The bank is YAML (`bank/`, format in docs/exercises.md); answers are read by a grammar that evaluates nothing.
"""

from costir.exercises.catalog import Bank
from costir.exercises.checker import Verdict, check
from costir.exercises.records import Exercise

__all__ = ["Bank", "Exercise", "Verdict", "check"]

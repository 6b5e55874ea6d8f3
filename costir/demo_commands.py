"""`costir demo ...`: parsed options in, exit code out."""

from __future__ import annotations

import argparse

from costir import commands
from costir.errors import ChipError
from costir.exercises.messages import language
from costir.hardware import calibration_of, here_path, load_chip

DONE = 0


def run(o: argparse.Namespace) -> int:
    """One experiment or all five, on the chip that this machine was calibrated as."""
    name, lang = commands.format_of(o), language(o.lang)
    if o.chip.strip().lower() == "here" and not here_path().is_file():
        raise ChipError("this machine was not calibrated yet", "run costir calibrate, which takes about a minute")
    chip = load_chip(o.chip)
    calibration_of(chip)
    from costir import demo_views
    from costir.measuring.demo import DEMOS

    found = []
    for demo in DEMOS if o.name == "all" else (o.name,):
        with commands.progress(f"measuring {demo}"):
            found.append(DEMOS[demo](chip))
    commands.emit(demo_views.demos(found, chip, lang), name, o)
    return DONE

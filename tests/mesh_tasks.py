"""What the processes of tests run."""

from __future__ import annotations

from costir.measuring import mesh_run
from costir.measuring.recorded_group import register

BACKEND = register()


def several(arguments, say):
    """Several runs, one after the other, in one set of processes."""
    return [mesh_run.run(asked, say) for asked in arguments]

"""A plan of the user's own: styles by module path, or a function that wraps the module itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from costir.errors import LoadError, nearest
from costir.load.family import Family
from costir.load.user_file import import_file
from costir.parallel.plan import Plan

Styles = Mapping[str, Any] | Callable[..., Any] | None
NAMES = ("parallelize", "tp_plan", "sp_plan")  # what is looked for in a file of which no name is given


def own_plan(family: Family, plan: Plan) -> Styles:
    """The user's plan for tp or sp: of the file that `--parallel` names, else of the model's own file; None without one.

    Raises:
        LoadError: no such file or name, or something that is no plan.
    """
    if not plan.file:
        wanted = next((s for s in ("tp", "sp") if plan.axes_of(s)), "")
        return family.plans.get(wanted) if wanted else None
    text, _, name = plan.file.partition(".py:")
    path = Path(text if text.endswith(".py") else f"{text}.py")
    if not path.exists():
        raise LoadError(
            f"no such file: {str(path)[:120]!r}, which --parallel names", "give the path of a Python file with a plan"
        )
    module = import_file(path)
    found = name or next((n for n in NAMES if hasattr(module, n)), "")
    if not found or not hasattr(module, found):
        has = [n for n in vars(module) if not n.startswith("_")]
        raise LoadError(
            f"{path} has no {found or 'plan'}", nearest(found, has) if found else f"write one of {', '.join(NAMES)}"
        )
    return checked(getattr(module, found), f"{found} in {path}")


def checked(given: Any, what: str) -> Styles:
    """A plan, if it is one.

    Raises:
        LoadError: where it is neither a dict of styles nor a function.
    """
    if inspect.isfunction(given) or (isinstance(given, Mapping) and all(isinstance(k, str) for k in given)):
        return given
    raise LoadError(f"{what} is no plan", 'a plan is a dict such as {"blocks.*.up": "colwise"} or a function of (module, mesh)')

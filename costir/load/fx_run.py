"""Running a node of a graph on its fake tensors, without leaving a trace in the program that it belongs to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from costir.load.fx_recorder import SymbolicRecorder


class Specialised(Exception):  # noqa: N818 - caught where it is raised, never shown
    """Torch took a symbolic size for the number that it is in the example, so the results hold for the example only."""


@contextlib.contextmanager
def running(mode: FakeTensorMode | None, recorder: SymbolicRecorder) -> Iterator[None]:
    """The state in which nodes are run: on fake tensors, under the recorder, without gradients, adding no guards.

    Raises:
        Specialised: a size was taken for a number on the way.
    """
    environment = mode.shape_env if mode is not None else None
    with contextlib.ExitStack() as stack:
        if mode is not None:
            stack.enter_context(mode)
        numbers: list[str] = []
        if environment is not None:
            stack.enter_context(environment.suppress_guards())
            stack.enter_context(_watched(environment, numbers))
        stack.enter_context(recorder)
        stack.enter_context(torch.no_grad())
        yield
    if numbers:
        raise Specialised(f"torch takes the size {numbers[0]} for a number")


@contextlib.contextmanager
def _watched(environment: Any, numbers: list[str]) -> Iterator[None]:
    """Note every size that is turned into a number; questions about sizes (is it larger?) are answered as in the example."""
    evaluate = environment.evaluate_sym_node

    def watching(node: Any, *args: Any, **kwargs: Any) -> Any:
        result = evaluate(node, *args, **kwargs)
        if getattr(node.expr, "free_symbols", None) and getattr(result, "is_number", False):
            numbers.append(str(node.expr))
        return result

    environment.evaluate_sym_node = watching
    try:
        yield
    finally:
        del environment.evaluate_sym_node

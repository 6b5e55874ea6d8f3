"""What a user calls: `costir.measure(subject)`, and the family of any subject that can be run here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from costir.chip import Chip
from costir.errors import LoadError, one_of
from costir.hardware import calibration_of, chip_of
from costir.ir import Graph, Tensor
from costir.load.family import Built, Family
from costir.load.subject import load
from costir.measuring.measure import Measurement
from costir.measuring.measure import measure as measured
from costir.symbolic import Integer, evaluate, size
from costir.trace import named_optimizer


def measure(
    subject: Any,
    inputs: Any = None,
    *,
    chip: str | Chip = "here",
    sizes: Mapping[str, int] | None = None,
    phase: str = "forward",
    dtype: str = "",
    model: str = "",
    input: Sequence[str] | str = (),
    optimizer: str | Callable[[Any], Any] | None = None,
) -> Measurement:
    """Run a model on this machine, and set its time beside the bound and the estimate.

    Args:
        subject, inputs, sizes, phase, dtype, model, input, optimizer: as for `costir.analyze`; the model is built for real.
            A module that is passed in is run as it is: training steps change its weights, and operators in place its inputs.
        chip: a chip file that `costir calibrate` wrote; "here" is the default one.

    Raises:
        ChipError: for what is no chip, or where there is no such file, or it was not calibrated.
        LoadError: for a subject that cannot be run, such as an exported program.
        TraceError: where the model does not run here.
    """
    one_of("phase", phase, ("forward", "backward", "train"))
    machine = chip_of(chip)
    calibration_of(machine)
    specs = (input,) if isinstance(input, str) else tuple(input)
    family = runnable(subject, inputs, sizes, phase, dtype, model, specs)
    return measured(family, machine, sizes, phase, named_optimizer(optimizer))


def runnable(subject: Any, inputs: Any = None, sizes: Mapping[str, int] | None = None, phase: str = "forward", dtype: str = "",
             model: str = "", specs: tuple[str, ...] = ()) -> Family:  # fmt: skip
    """The family of a subject; a notation string becomes a module that multiplies real tensors.

    Raises:
        LoadError: where it has none.
    """
    found = load(subject, inputs, sizes, phase, dtype, model, specs, None)
    if isinstance(found, Family):
        return found
    if all(c.op == "costir.einsum" for c in found.calls):
        return _of_notation(found)
    raise LoadError(f"{found.name} cannot be run", "give the model itself: a Python file, a config, or a module")


class _Einsum(nn.Module):  # type: ignore[misc]
    """One contraction; every operand but the first is a weight."""

    def __init__(self, equation: str, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.equation = equation
        self.weights = nn.ParameterList([nn.Parameter(w, requires_grad=w.is_floating_point()) for w in weights])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return torch.einsum(self.equation, x, *self.weights)


def _of_notation(graph: Graph) -> Family:
    call = graph.calls[0]
    equation = str(call.args["equation"])

    def build(**sizes: int) -> Built:
        operands = [_tensor(t, sizes) for t in call.inputs]
        return Built(_Einsum(equation, operands[1:]), (operands[0],), {})

    return Family(graph.name, build, dict(graph.sizes))


def _tensor(t: Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
    point = {size(n): Integer(int(v)) for n, v in sizes.items()}
    shape = [int(evaluate(d, point)) for d in t.shape]
    dtype = getattr(torch, t.dtype, torch.float32)
    return torch.rand(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)


__all__ = ["measure", "runnable"]

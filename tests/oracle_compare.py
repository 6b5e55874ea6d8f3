"""The kernels found here and TorchInductor's, of one case: what tests and the benchmark compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fusion_cases import CASES
from fusion_models import OPTIMIZERS, trained
from oracle_inductor import kernels_of
from torch import nn

from costir import trace
from costir.fusion.kernels import fuse
from costir.load.family import Family


@dataclass(frozen=True)
class Kernel:
    """Bytes that a kernel moves, and what is in it."""

    nbytes: float
    words: str


def both(name: str, width: int, phase: str) -> tuple[list[Kernel], list[Kernel]]:
    """Ours and theirs, of "forward", "backward" (both passes) or the "optimizer"'s step."""
    if name in OPTIMIZERS:
        return _of_optimizer(OPTIMIZERS[name], width)
    module, args = CASES[name](width)
    theirs = kernels_of(module, args, backward=phase == "backward")
    module, args = CASES[name](width)
    return _ours(_family(module, args), phase), _theirs(theirs)


def _of_optimizer(make: Any, width: int) -> tuple[list[Kernel], list[Kernel]]:
    module, x = trained(width), torch.randn(6 * width, width)
    optimizer = make(list(module.parameters()))
    module(x).sum().backward()
    optimizer.step()  # makes the states

    def step() -> None:
        optimizer.step()

    theirs = kernels_of(step, (), fullgraph=False)
    family = _family(trained(width), (x,), optimizer=make, loss=lambda out: out.sum())
    return _ours(family, "train", "optimizer"), _theirs(theirs)


def _family(module: nn.Module, args: tuple[torch.Tensor, ...], **more: Any) -> Family:
    return Family("case", lambda: (module, args, {}), {}, **more)


def _ours(family: Family, phase: str, only: str = "") -> list[Kernel]:
    t = trace.run(family, {}, phase)
    out = []
    for k in fuse(t, "inductor").kernels:
        events = [t.events[i] for i in (*k.events, *k.again)]
        if not only or events[0].phase == only:
            out.append(Kernel(k.nbytes, _words([e.op.split(".")[1] for e in events])))
    return out


def _theirs(found: Sequence[Any]) -> list[Kernel]:
    return [Kernel(k.nbytes, _words(k.operators)) for k in found]


def _words(operators: Sequence[str]) -> str:
    return " ".join(dict.fromkeys(o.split(".")[0] for o in operators))

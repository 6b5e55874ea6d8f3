"""Small models as functions of their sizes, by kind of difficulty, each with sizes at which its formulas must hold.

A model enters by the decorator `model(...)` on its `build(**sizes) -> (module, args, kwargs)`, whose defaults are the base
sizes. `points` are far sizes at which the formulas must give what a run there gives; `refused` is a text of the error of a
model that no size determines; `outside` are sizes that run, but in which the formulas need not hold (a clear refusal is right,
a wrong number is not).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

Sizes = dict[str, int]


@dataclass(frozen=True)
class Model:
    """One model and what is known about it."""

    name: str
    build: Callable[..., Any]
    points: tuple[Sizes, ...]
    refused: str = ""
    outside: tuple[Sizes, ...] = ()
    phase: str = "forward"

    @property
    def base(self) -> Sizes:
        return {p.name: p.default for p in inspect.signature(self.build).parameters.values()}


MODELS: dict[str, Model] = {}


def model(*points: Sizes, refused: str = "", outside: tuple[Sizes, ...] = (), phase: str = "forward") -> Callable[..., Any]:
    """Register a build function."""

    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        name = build.__name__
        assert name not in MODELS, name
        MODELS[name] = Model(name, build, points, refused, outside, phase)
        return build

    return register


class Run(nn.Module):
    """A module made of parts and a plain function of (self, *inputs): keeps the models below short."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._run = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self, *args, **kwargs)


def load_all() -> Mapping[str, Model]:
    """Every model of every kind."""
    for kind in ("branches", "hidden", "loops", "layers", "shapes", "bodies", "state", "inputs", "data"):
        importlib.import_module(f"families_{kind}")
    return MODELS


def names() -> Iterator[str]:
    yield from load_all()

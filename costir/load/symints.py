"""torch's own symbolic sizes (s77, with FloorDiv, Mod, Max, ...) as expressions over costir's sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import sympy as sp
import torch

from costir.errors import LoadError
from costir.symbolic import Expr, Integer, ceil_div, floor_div, number, size

_SAME = ("Identity", "ToFloat")
_CONDITIONS = {
    "Equality": sp.Eq, "Unequality": sp.Ne, "StrictLessThan": sp.Lt, "LessThan": sp.Le, "StrictGreaterThan": sp.Gt,
    "GreaterThan": sp.Ge, "And": sp.And, "Or": sp.Or, "Not": sp.Not,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": sp.Add, "Mul": sp.Mul, "Pow": sp.Pow, "PowByNatural": sp.Pow, "FloatPow": sp.Pow, "Max": sp.Max, "Min": sp.Min,
    "FloorDiv": floor_div, "CleanDiv": floor_div, "CeilDiv": ceil_div, "Mod": sp.Mod, "PythonMod": sp.Mod,
    "ModularIndexing": lambda x, divisor, modulus: sp.Mod(floor_div(x, divisor), modulus),
    "IntTrueDiv": lambda a, b: a / b, "FloatTrueDiv": lambda a, b: a / b, "FloorToInt": sp.floor, "CeilToInt": sp.ceiling,
    "floor": sp.floor, "ceiling": sp.ceiling, "Abs": sp.Abs, "OpaqueUnaryFn_sqrt": sp.sqrt, "OpaqueUnaryFn_log": sp.log,
    "TruncToInt": sp.floor, "TruncToFloat": sp.floor,  # sizes are not negative
    "LShift": lambda a, b: a * 2**b, "RShift": lambda a, b: floor_div(a, 2**b),
    "Where": lambda c, a, b: sp.Piecewise((a, c), (b, True)),
}  # fmt: skip


class Places:
    """Where the symbols of a program come from: "s77" is dimension 0 of x, and torch.export called it "batch"."""

    def __init__(self, graph_module: Any = None) -> None:
        self.of: dict[str, str] = {}
        self.symbols: dict[str, str] = {}  # by the name of the torch.export.Dim, as far as the program still knows it
        nodes = graph_module.graph.nodes if graph_module is not None else ()
        for node in (n for n in nodes if n.op == "placeholder"):
            given = node.meta.get("val", node.meta.get("example_value"))
            for i, d in enumerate(given.shape if isinstance(given, torch.Tensor) else ()):
                if isinstance(d, torch.SymInt) and d.node.expr.is_Symbol:
                    self.of.setdefault(str(d.node.expr), f"dimension {i} of {node.name}")
                    self._called(d.node.shape_env, d.node.expr)

    def _called(self, environment: Any, symbol: Any) -> None:
        """Note what the program's own Dim of a symbol is called."""
        names = getattr(environment, "source_name_to_debug_name", None) or {}
        for source in (getattr(environment, "var_to_sources", None) or {}).get(symbol, ()):
            text = source.name() if callable(source.name) else source.name
            if text in names:
                self.symbols.setdefault(names[text], str(symbol))

    def text(self, symbols: Iterable[str]) -> str:
        """The symbols with their places: "s77 (dimension 0 of x)"."""
        return ", ".join(f"{s} ({self.of[s]})" if s in self.of else s for s in symbols)


class Symbols:
    """The symbols of one program under their new names, with the values that they had in its example.

    Args:
        names: new names by torch's names, {"s77": "B"}, or by those of the program's Dims.
        places: where the symbols come from.
        divisible: pairs (a, n), in torch's symbols, of which it is known that n divides a.
    """

    def __init__(self, names: Mapping[str, str], places: Places | None = None) -> None:
        self.places = places or Places()
        found = [self.places.symbols.get(old, old) for old in names]
        twice = next((s for s in found if found.count(s) > 1), None)
        if twice is not None:
            raise LoadError(f"names gives two names to the symbol {self.places.text([twice])}", "give one")
        names = dict(zip(found, names.values(), strict=True))
        taken = list(names.values())
        for new in taken:
            if taken.count(new) > 1:
                raise LoadError(f"names gives the name {new!r} to two symbols", "give each its own: a symbol is one size")
            if not new.isidentifier():
                raise LoadError(f"names gives a symbol the name {new!r:.40}", "use letters, digits and _")
        self.names = dict(names)
        self.hints: dict[str, int | None] = {}  # by torch's name, in order of appearance
        self.environments: dict[int, Any] = {}
        self.divisible: set[tuple[Any, Any]] = set()
        self._known: dict[Any, Any] = {}

    def number(self, x: Any) -> Expr:
        """A whole number or SymInt as an expression."""
        if not isinstance(x, torch.SymInt):
            return Integer(int(x))
        self._see(x)
        return cast(Expr, self.translate(x.node.expr))

    def condition(self, x: torch.SymBool) -> Any:
        """A SymBool as a condition on the sizes."""
        self._see(x)
        return self.translate(x.node.expr)

    def _see(self, x: Any) -> None:
        environment = x.node.shape_env
        if environment is None:
            return
        self.environments.setdefault(id(environment), environment)
        values = environment.backed_var_to_val if hasattr(environment, "backed_var_to_val") else environment.var_to_val
        for s in sorted(x.node.expr.free_symbols, key=str):
            if self.hints.get(str(s)) is None:
                self.hints[str(s)] = int(values[s]) if s in values else None

    def name(self, torch_name: str) -> str:
        """The name of a symbol in results."""
        return self.names.get(torch_name, torch_name)

    def translate(self, e: Any) -> Any:
        """A sympy expression or condition of torch's.

        Raises:
            LoadError: it holds a function that has no counterpart.
        """
        if e not in self._known:
            self._known[e] = self._translated(e)
        return self._known[e]

    def _translated(self, e: Any) -> Any:
        if e.is_Symbol:
            return size(self.name(str(e)))
        if e in (sp.true, sp.false) or e.is_Rational:
            return e
        if e.is_Float:
            return number(float(e))
        kind = type(e).__name__
        arguments = [self.translate(a) for a in e.args]
        if kind in _SAME:
            return arguments[0]
        if kind in ("FloorDiv", "CleanDiv") and (e.args in self.divisible or kind == "CleanDiv"):
            return arguments[0] / arguments[1]
        if kind in _CONDITIONS:
            return _CONDITIONS[kind](*arguments)
        if kind in _FUNCTIONS:
            return _FUNCTIONS[kind](*arguments)
        raise LoadError(
            f"the program has a size {e}, and {kind} is no function that costir knows", "export it with other sizes"
        )

    def check_names(self) -> None:
        """Refuse names for symbols that the program has not.

        Raises:
            LoadError: with the nearest symbols.
        """
        for old, new in self.names.items():
            if old not in self.hints:
                raise LoadError(
                    f"the program has no symbol {old!r} to name {new!r}",
                    f"it has {self.places.text(self.hints)}" if self.hints else "all its sizes are numbers",
                )
            if new in self.hints and new not in self.names:
                raise LoadError(
                    f"{old!r} cannot be named {new!r}, which is another symbol of the program", "rename that one too"
                )

"""What a student typed, read in the letters of the exercise."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from costir import symbolic as sym
from costir.errors import FormulaError
from costir.exercises.reference import Reference, Unit, in_si, unit_of
from costir.formula import Formula, parse_formula
from costir.sampling import as_float
from costir.symbolic import Expr

LONGEST = 2000
MOST_TERMS, MOST_DEGREE = 60, 10
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
# "17.4B" is 17.4 billion where B is no letter of the exercise.
_SUFFIX = re.compile(r"(?<![\w.])([0-9][0-9,]*\.?[0-9]*)\s*(k|K|M|B|T|bn|thousand|million|billion|trillion)(?=\s|$)")
_POWER = {"k": 3, "K": 3, "thousand": 3, "M": 6, "million": 6, "B": 9, "bn": 9, "billion": 9, "T": 12, "trillion": 12}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        expr: in SI, over letters; for a bound the value at the boundary.
        relation: "<", ">", "<=", ">=" with `symbol` on the left, or "" where none was written.
        symbol: the letter that a relation is on; "" where none was written.
        unit: what was written; None where nothing was.
        digits: significant digits of one plain number, else 0.
        scale: the unit that the digits are in: 1/1000 for ms.
        notes: how ambiguous places were read.
    """

    text: str
    expr: Expr
    relation: str
    symbol: str
    unit: Unit | None
    digits: int
    scale: Fraction
    notes: tuple[str, ...]

    @property
    def is_number(self) -> bool:
        """Whether it has no letters."""
        return not self.expr.free_symbols

    def rounds(self, value: Fraction) -> bool:
        """Whether a number is this value as rounded or cut to the digits typed (two at least); without digits, to 0.1 %."""
        number = sym.to_fraction(self.expr)
        if number is None:
            return False
        if self.digits >= 2:
            typed, exact = (as_float(x / self.scale) for x in (number, value))
            shown = f"{typed:.{self.digits - 1}e}"
            cut = f"{exact:.{self.digits + 8}e}"
            cut = f"{cut[: cut.index('.') + self.digits]}{cut[cut.index('e') :]}"  # 8755 for 8755.56
            return shown == f"{exact:.{self.digits - 1}e}" or (self.digits > 2 and shown == cut)
        return number == value or (self.digits == 0 and abs(number - value) <= abs(value) / 1000)


def read(text: str, reference: Reference) -> Answer:
    """Read an answer to a part.

    Raises:
        FormulaError: where it cannot be read; the message points at the character.
    """
    if len(text) > LONGEST:
        raise FormulaError(f"an answer of {len(text)} characters is too long", f"at most {LONGEST} are read")
    if not text.strip():
        raise FormulaError("the answer is empty", "write for example C/W, 240 or B > 240")
    letters = reference.letters
    formula = parse_formula(_powers(text, letters), letters, two_sided=True)
    unit = unit_of(formula.unit) if formula.unit else None
    relation = formula.relation if formula.relation in _FLIP else ""
    symbol = formula.lhs or ""
    expr, scale = in_si(formula, reference.unit)
    wanted = reference.right.symbol or _alone(formula, letters)
    if formula.relation and wanted and symbol != wanted:
        solved = _solved(formula, wanted, letters)
        if solved is not None:
            relation, expr = solved[0] if relation else "", solved[1]
            symbol = wanted
        elif formula.left is not None:
            raise FormulaError("the left side of the relation is no name", f"write it as {wanted} {formula.relation} ...")
    elif formula.left is not None:
        raise FormulaError("the left side of the relation is no name", "write the answer alone")
    return Answer(text, expr, relation, symbol, unit, formula.digits, scale, formula.notes)


def _powers(text: str, letters: frozenset[str]) -> str:
    """17.4B as 17.4e9, where B is no letter of the exercise."""

    def put(m: re.Match[str]) -> str:
        return m[0] if m[2] in letters else f"{m[1].rstrip('.')}e{_POWER[m[2]]}"

    return _SUFFIX.sub(put, text)


def _alone(formula: Formula, letters: frozenset[str]) -> str:
    """The one letter on the left of `2*X = ...`, which the answer is meant to be the value of."""
    found = sorted(str(s) for s in formula.left.free_symbols) if formula.left is not None else []
    return found[0] if len(found) == 1 and found[0] in letters else ""


def _solved(formula: Formula, name: str, letters: frozenset[str]) -> tuple[str, Expr] | None:
    """A relation that stands in another form, W*D > 2*C or 2*C/D < W, as one on the letter that is asked; None if it is not.

    Everything is positive, so that one root says where the relation changes.
    """
    symbol = sym.size(name)
    left = formula.left if formula.left is not None else sym.size(formula.lhs) if formula.lhs in letters else None
    if left is None or symbol not in (left - formula.expr).free_symbols:
        return None
    difference = left - formula.expr
    if sym.spread(difference) > MOST_TERMS or sym.degree(difference) > MOST_DEGREE:  # solving takes no bounded time
        return None
    roots = [r for r in sym.roots(difference, symbol) if r != 0 and not r.is_negative]
    if len(roots) != 1:
        return None
    others = {s: 3 + 2 * i for i, s in enumerate(sorted(roots[0].free_symbols, key=str))}
    root = sym.to_fraction(sym.evaluate(roots[0], others))
    if root is None or root <= 0:
        return None
    above = sym.evaluate(difference, {**others, symbol: sym.number(2 * root)})
    greater = bool(above.is_positive) == (formula.relation[0] != "<")
    return (">" if greater else "<") + formula.relation[1:], roots[0]

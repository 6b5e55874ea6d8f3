"""Read a formula that a person typed, and evaluate nothing.

    parse_formula("flops = 2BDF", names=("B", "D", "F"))     -> Formula("flops", "=", 2*B*D*F)
    parse_formula(r"D \\ge \\frac{2C}{W}", names=("C", "W"))   -> Formula("D", ">=", 2*C/W)
    parse_formula("9.8 ms")                                  -> Formula(None, "", 49/5000, unit="s")

The text is cut into tokens (`formula_tokens.py`), parsed by precedence into small tuples, and only then built into sympy
(`formula_build.py`), with a limit on everything that could grow: length, nesting, exponents, numbers, terms when multiplied
out. Every failure is a `FormulaError` that points at the character.

How it reads what is ambiguous: names side by side multiply (`2BDF`), and without a space they bind tighter than a
division: `1/2B` is 1/(2*B). `Formula.notes` says so, since the writer may have meant something else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from costir import symbolic as sym
from costir.errors import FormulaError
from costir.formula_build import Tree, build
from costir.formula_tokens import FUNCTIONS, RELATIONS, Token, fail, parts, read_unit, shown_digits, tokenize, without_about
from costir.symbolic import Expr

MAX_LENGTH = 10_000
MAX_DEPTH = 40
MAX_CALLS = 24
MAX_WORD = 200
MAX_ARGUMENTS = 8


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula as it was read.

    Attributes:
        text: what was typed.
        lhs: the name on the left, words joined by one space ("flops", "critical B"); None where there is none.
        left: the side before the relation where neither side is a name, `2*B < W*D`; else None.
        relation: "=", "<", "<=", ">", ">=", "~" (approximately), or "" where there is none.
        expr: the other side, exactly, over `symbolic.size` symbols; a number with a unit is in SI units.
        unit: "FLOP", "byte", "s", "FLOP/byte", ...; "" where none was written.
        scale: how many of the unit's base the written unit is: 1000**-1 for ms.
        digits: significant digits, where the answer is one plain number ("255.2" has 4), else 0.
        notes: how ambiguous places were read.
    """

    text: str
    lhs: str | None
    relation: str
    expr: Expr
    unit: str = ""
    digits: int = 0
    notes: tuple[str, ...] = ()
    left: Expr | None = None
    scale: Expr = sym.ONE


def parse_formula(text: str, names: Collection[str] | None = None, two_sided: bool = False) -> Formula:
    """Read a formula with at most one relation.

    Args:
        text: what was typed: Python, plain mathematics with juxtaposition and superscripts, full-width, or simple LaTeX.
        names: the size names that may occur. A run of letters is split into them, the longest first. None accepts every
            word as one name.
        two_sided: read relations between two expressions too; without it one side must be a name.

    Raises:
        FormulaError: where it cannot be read, names something unknown, or would grow too large. The message points at the
            character, counted from 1.
    """
    if not isinstance(text, str):
        raise FormulaError(f"a formula is text, not {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise FormulaError(f"a formula of {len(text)} characters is too long", f"at most {MAX_LENGTH} are read")
    known = None if names is None else frozenset(names)
    tokens = without_about(tokenize(text), known or ())
    at = _relation(text, tokens)
    if at is None:
        return _side(text, tokens, known)
    left, relation, right = tokens[:at], tokens[at].value, tokens[at + 1 : -1]
    end = tokens[-1]
    phrase = _phrase(left, known if two_sided else None)
    if phrase is None and (flipped := _phrase(right, known if two_sided else None)) is not None:
        phrase, right, relation = flipped, left, _FLIP[relation]
        end = replace(tokens[at], kind="end")
    if phrase is None and two_sided and not left:
        return replace(_side(text, [*right, end], known), relation=relation)
    if phrase is None and two_sided:
        before = _side(text, [*left, replace(tokens[at], kind="end")], known)
        return replace(_side(text, [*right, end], known), relation=relation, left=before.expr)
    if phrase is None:
        raise fail(text, tokens[0], "one side of the relation must be a name", "write for example flops = 2*B*D*F")
    return replace(_side(text, [*right, end], known), lhs=phrase, relation=relation)


_FLIP = {"=": "=", "~": "~", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _relation(text: str, tokens: list[Token]) -> int | None:
    """Where the relation stands; two are refused."""
    found = [i for i, t in enumerate(tokens) if t.kind == "op" and t.value in RELATIONS]
    if len(found) > 1:
        raise fail(text, tokens[found[1]], f"a second relation {tokens[found[1]].value!r}", "write one relation only")
    return found[0] if found else None


def _phrase(tokens: list[Token], known: frozenset[str] | None) -> str | None:
    """The name that these tokens spell ("critical B", "B*"), or None where they are an expression.

    With the sizes given, several of them side by side are a product: `BW > C`.
    """
    words = [t.value for t in tokens if t.kind == "word"]
    if known and len(words) == len(tokens):
        counts = [parts(w, known) for w in words]
        if all(counts) and sum(counts) > 1:
            return None
    if len(tokens) > 1 and (tokens[-1].kind, tokens[-1].value) == ("op", "*"):
        tokens = tokens[:-1]
        if len(tokens) > 1 and tokens[-1].value == "^":
            tokens = tokens[:-1]
        return f"critical {tokens[0].value}" if len(tokens) == 1 and tokens[0].kind == "word" else None
    if not 1 <= len(tokens) <= 3 or any(t.kind != "word" for t in tokens):
        return None
    return " ".join(t.value for t in tokens)


def _side(text: str, tokens: list[Token], known: frozenset[str] | None) -> Formula:
    """The expression, its unit, and how many digits it shows."""
    if tokens[0].kind == "end":
        raise fail(text, tokens[0], "there is nothing to read", "write for example 2*B*D*F")
    body, unit, scale = read_unit(tokens, known)
    parser = _Parser(text, body, known)
    tree = parser.parse()
    expr = build(text, tree) * scale
    return Formula(text, None, "", expr, unit, shown_digits(body[:-1]), tuple(dict.fromkeys(parser.notes)), None, scale)


class _Parser:
    """Precedence: + - | * / and juxtaposition over a space | juxtaposition without a space | sign | power | atom."""

    def __init__(self, text: str, tokens: list[Token], known: frozenset[str] | None) -> None:
        self.text = text
        self.tokens = list(_split_words(text, tokens, known))
        self.here = 0
        self.depth = 0
        self.calls = 0
        self.run = False  # whether the factors read last stood side by side without a space
        self.notes: list[str] = []

    @property
    def token(self) -> Token:
        return self.tokens[self.here]

    def take(self) -> Token:
        token = self.token
        self.here += token.kind != "end"
        return token

    def accept(self, *values: str) -> Token | None:
        return self.take() if self.token.kind == "op" and self.token.value in values else None

    def error(self, message: str, hint: str = "") -> FormulaError:
        return fail(self.text, self.token, message, hint)

    def parse(self) -> Tree:
        tree = self.sum()
        if self.token.kind != "end":
            raise self.error(f"unexpected {self.token.shown}")
        return tree

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error("nested too deeply", f"at most {MAX_DEPTH} levels are read")
        at = self.token
        terms = [self.term()]
        while sign := self.accept("+", "-"):
            right = self.term()
            terms.append(right if sign.value == "+" else ("neg", right, sign))
        self.depth -= 1
        return terms[0] if len(terms) == 1 else ("add", tuple(terms), at)

    def term(self) -> Tree:
        at = self.token
        factors = [self.signed()]
        while True:
            if self.accept("*"):
                factors.append(self.signed())
            elif sign := self.accept("/"):
                start = self.here
                below = self.signed()
                self._note_division(start)
                factors.append(("inv", below, sign))
            elif self.starts_factor():
                factors.append(self.juxtaposed())
            else:
                break
        return factors[0] if len(factors) == 1 else ("mul", tuple(factors), at)

    def _note_division(self, start: int) -> None:
        """Say how `1/2B` and `a/b c` were read."""
        if self.run:
            run = "".join(t.shown_plain for t in self.tokens[start : self.here])
            self.notes.append(f"/{run} is read as /({run})")
        elif self.starts_factor():
            self.notes.append(f"the {self.token.shown_plain} after the division is read as a factor above the line")

    def signed(self) -> Tree:
        minus: Token | None = None
        while sign := self.accept("+", "-"):
            if sign.value == "-":
                minus = None if minus else sign
        tree = self.juxtaposed()
        return ("neg", tree, minus) if minus else tree

    def juxtaposed(self) -> Tree:
        """Factors side by side without a space."""
        at = self.token
        factors = [self.power()]
        while self.starts_factor() and not self.token.space:
            factors.append(self.power())
        self.run = len(factors) > 1
        return factors[0] if len(factors) == 1 else ("mul", tuple(factors), at)

    def starts_factor(self) -> bool:
        t = self.token
        return t.kind in ("name", "number", "call", "frac", "root") or (t.kind == "op" and t.value in _CLOSE)

    def power(self) -> Tree:
        base = self.atom()
        if not (sign := self.accept("^")):
            return base
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error("nested too deeply", f"at most {MAX_DEPTH} levels are read")
        minus = False
        while mark := self.accept("-", "+"):
            minus ^= mark.value == "-"
        exponent = self.power()
        self.depth -= 1
        return ("pow", base, ("neg", exponent, sign) if minus else exponent, sign)

    def atom(self) -> Tree:
        t = self.take()
        if t.kind == "number":
            return ("num", _number(self.text, t), t)
        if t.kind == "name":
            return ("name", t.value, t)
        if t.kind == "call":
            return self.call(t)
        if t.kind == "frac":
            return ("mul", (self.argument(), ("inv", self.argument(), t)), t)
        if t.kind == "root":
            return self._count(t, ("call", "sqrt", (self.argument(),), t))
        if t.kind == "op" and t.value in _CLOSE:
            inner = self.closed(t)
            function = {"⌈": "ceil", "⌊": "floor"}.get(t.value)
            return self._count(t, ("call", function, (inner,), t)) if function else inner
        raise fail(self.text, t, f"expected a number, a size or '(' but found {t.shown}")

    def closed(self, opening: Token) -> Tree:
        """The inside of a bracket that was just opened."""
        tree = self.sum()
        if not self.accept(_CLOSE[opening.value]):
            raise self.error(
                f"expected {_CLOSE[opening.value]!r} to close {opening.value!r} of character {opening.at + 1}"
                f" but found {self.token.shown}"
            )
        return tree

    def argument(self) -> Tree:
        """The argument of a LaTeX command or of a root: a bracket, or one atom (one digit of a number)."""
        t = self.token
        if t.kind == "number" and t.value.isdigit() and len(t.value) > 1 and not t.space:
            self.tokens[self.here] = replace(t, value=t.value[1:], at=t.at + 1)
            return ("num", sym.number(t.value[0]), t)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error("nested too deeply", f"at most {MAX_DEPTH} levels are read")
        tree = self.atom()
        self.depth -= 1
        return tree

    def call(self, t: Token) -> Tree:
        base = self.argument() if t.value == "log" and self.accept("_") else None
        opening = self.accept("(", "{")
        if not opening:
            if t.value not in ("log", "ln", "log2", "sqrt"):
                raise self.error(f"expected '(' after {t.value} but found {self.token.shown}")
            arguments = [self.argument()]
        else:
            arguments = [self.sum()]
            while self.accept(","):
                arguments.append(self.sum())
            if not self.accept(_CLOSE[opening.value]):
                raise self.error(f"expected {_CLOSE[opening.value]!r} after {t.value}(... but found {self.token.shown}")
        if base is not None:
            arguments.append(base)
        least, most = FUNCTIONS[t.value]
        if not least <= len(arguments) <= min(most, MAX_ARGUMENTS):
            takes = f"it takes {least} to {min(most, MAX_ARGUMENTS)}"
            raise fail(self.text, t, f"{t.value} of {len(arguments)} arguments", takes)
        return self._count(t, ("call", t.value, tuple(arguments), t))

    def _count(self, t: Token, tree: Tree) -> Tree:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise fail(self.text, t, "too many functions", f"at most {MAX_CALLS} are read")
        return tree


_CLOSE = {"(": ")", "{": "}", "[": "]", "⌈": "⌉", "⌊": "⌋"}


def _number(text: str, t: Token) -> Expr:
    """The exact number of a token."""
    mantissa, _, exponent = t.value.lower().partition("e")
    if len(mantissa) > 1 and mantissa[0] == "0" and mantissa[1] != ".":
        raise fail(text, t, f"a number that starts with 0, {mantissa[:20]!r}", "write 2000, not 2,000, inside brackets")
    if len(mantissa) > 400 or len(exponent) > 5 or abs(int(exponent or 0)) > 400:
        raise fail(text, t, "a number out of range", "at most 400 digits are read")
    return sym.number(t.value.lower())


def _split_words(text: str, tokens: list[Token], known: frozenset[str] | None) -> Iterator[Token]:
    """Words become names and functions: a known name or function as it is, else the known names it is a run of."""
    for i, t in enumerate(tokens):
        if t.kind != "word":
            letter = next((c for c in t.value if c in "eE"), "") if t.kind == "number" else ""
            if known and letter in known:
                raise fail(text, t, f"{t.value} can be read in two ways", f"write 2*{letter}*3 or 2*10^3")
            yield t
            continue
        opens = tokens[i + 1].kind == "op" and tokens[i + 1].value in "({_"
        if known is not None and t.value in known:
            yield replace(t, kind="name")
        elif known is not None and t.value.replace("_", "") in known:  # W_{uni} is Wuni
            yield replace(t, kind="name", value=t.value.replace("_", ""))
        elif known is not None and t.value in ("x", "X") and i > 0 and tokens[i - 1].kind in ("number", "word"):
            yield replace(t, kind="op", value="*")
        elif t.value in FUNCTIONS:
            yield replace(t, kind="call")
        elif known is None and not opens:
            yield replace(t, kind="name")
        else:
            yield from _split(text, t, known or frozenset(), opens and not tokens[i + 1].space)


def _split(text: str, t: Token, known: frozenset[str], opens: bool) -> Iterator[Token]:
    """`2BDF`: the parts of a run of names, the longest names first, the fewest parts."""
    functions = frozenset(FUNCTIONS) if opens else frozenset[str]()
    word = t.value
    if not known and opens:
        raise fail(text, t, f"{word[:40]!r} is no function that is known here", f"known: {', '.join(sorted(FUNCTIONS))}")
    if len(word) > MAX_WORD:
        raise fail(text, t, f"a word of {len(word)} letters", f"at most {MAX_WORD} are read")
    # best[i]: the fewest parts that spell word[i:]; of equal ones the one with the longest first part.
    best: list[tuple[str, ...] | None] = [None] * len(word) + [()]
    lengths = sorted({len(n) for n in known | functions}, reverse=True)
    for i in range(len(word) - 1, -1, -1):
        for n in lengths:
            part = word[i : i + n]
            rest = best[i + n] if i + n <= len(word) else None
            usable = part in known or (part in functions and i + n == len(word))
            if usable and rest is not None and (best[i] is None or len(rest) + 1 < len(best[i] or ())):
                best[i] = (part, *rest)
    parts = best[0]
    if parts is None:
        known_until = _spelled(word, known)
        part = word[known_until:]
        where = f", in {word[:40]!r}" if known_until else ""
        raise fail(
            text, replace(t, at=t.at + known_until), f"{part[:40]!r} is not a size here{where}", _known_hint(part, known)
        )
    at = t.at
    for k, part in enumerate(parts):
        kind = "name" if part in known else "call"
        yield replace(t, kind=kind, value=part, at=at, space=t.space if k == 0 else False)
        at += len(part)


def _spelled(word: str, known: frozenset[str]) -> int:
    """How many letters from the left are a run of known names, at most."""
    reach = {0}
    for i in range(len(word)):
        if i in reach:
            reach |= {i + len(n) for n in known if n and word.startswith(n, i)}
    return max(reach)


def _known_hint(word: str, known: frozenset[str]) -> str:
    other = {n for n in known if n.lower() == word.lower()}
    if other:
        return f"did you mean {', '.join(sorted(other))}? letters are told apart by case"
    return f"known: {', '.join(sorted(known)[:16])}" if known else "no size is known"

"""The characters of a typed formula, cut into tokens: plain, full-width, superscripts, simple LaTeX, and units."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass

from costir import symbolic as sym
from costir.errors import FormulaError
from costir.symbolic import Expr

RELATIONS = ("=", "<", "<=", ">", ">=", "~")
# Function name -> least and most arguments.
FUNCTIONS = {
    "floor": (1, 1), "ceil": (1, 1), "ceiling": (1, 1), "sqrt": (1, 1), "log": (1, 2), "ln": (1, 1), "log2": (1, 1),
    "log10": (1, 1), "abs": (1, 1), "gcd": (2, 2), "min": (1, 99), "max": (1, 99), "Min": (1, 99), "Max": (1, 99),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text: `at` is its place in what was typed, `space` whether white space stands before it."""

    kind: str
    value: str
    at: int
    space: bool = False

    @property
    def shown(self) -> str:
        """The token in a message."""
        return "the end" if self.kind == "end" else f"{self.value[:20]!r}"

    @property
    def shown_plain(self) -> str:
        """The token as it was written."""
        return self.value


def fail(text: str, token: Token, message: str, hint: str = "") -> FormulaError:
    """The error that points at a token: message, where, and the text around the place."""
    at = min(token.at, len(text))
    near = "".join(c if c.isprintable() else " " for c in text[at : at + 16])
    rest = f', before "{near}"' if near.strip() else ", its end"
    start = "".join(c if c.isprintable() else " " for c in text[:60])
    return FormulaError(f'{message} at character {at + 1} of "{start}{"..." if len(text) > 60 else ""}"{rest}', hint)


# ---- characters -------------------------------------------------------------------------------------------------------

_SUPERSCRIPT = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_CHARACTER = {
    **dict.fromkeys("×·∙⋅∗・•✕✖⨯", "*"), **dict.fromkeys("÷∕⁄", "/"), **dict.fromkeys("−–—‐‑﹣", "-"),
    "≥": ">=", "≧": ">=", "⩾": ">=", "≤": "<=", "≦": "<=", "⩽": "<=", **dict.fromkeys("≈≃≅∼", "~"), "：": ":", "½": "(1/2)",
    "¼": "(1/4)", "¾": "(3/4)", "【": "(", "】": ")", "√": "√", "µ": "μ", "\u200b": " ", "\ufeff": " ", "。": " ",
}  # fmt: skip


# Chinese words that stand for signs and units; the longest that fits is taken.
_WORD = {
    "大于等于": ">=", "不小于": ">=", "不少于": ">=", "大于": ">", "超过": ">",
    "小于等于": "<=", "不大于": "<=", "不超过": "<=", "小于": "<", "低于": "<",
    "等于": "=", "大约": "~", "大概": "~", "约等于": "~", "约为": "~", "约": "~",
    "乘以": "*", "除以": "/", "加上": "+", "减去": "-", "万亿": "*10^12", "亿": "*10^8", "万": "*10^4",
    "字节": " byte", "比特": " bit", "毫秒": " ms", "微秒": " us", "纳秒": " ns", "秒": " s", "分钟": " min", "小时": " hours",
    "天": " days", "年": " years", "次浮点运算": " FLOP", "浮点运算": " FLOP", "次运算": " FLOP", "词元": " token",
    "至少": ">=", "左右": " ", "四分之一": "(1/4)", "一半": "(1/2)", "条": " ", "跳": " ", "请求": " request",
    "序列": " sequence",
    "个": " ", "块": " ", "张": " ", "趟": " ", "倍": " ",
}  # fmt: skip
_WORDS = re.compile("|".join(sorted(_WORD, key=len, reverse=True)))


def _characters(text: str) -> tuple[str, list[int]]:
    """The text in plain characters, and for each the place it came from; a superscript n becomes ^(n)."""
    out: list[str] = []
    places: list[int] = []
    previous_super = False
    words = {m.start(): m[0] for m in _WORDS.finditer(text)}
    end = 0  # of the word that was read last
    for i, c in enumerate(text):
        if i < end:
            continue
        is_super = c in _SUPERSCRIPT
        plain = ")" if previous_super and not is_super else ""
        if is_super:
            plain += ("" if previous_super else "^(") + _SUPERSCRIPT[c]
        elif i in words:
            plain += _WORD[words[i]]
            end = i + len(words[i])
        else:
            plain += _CHARACTER.get(c) or unicodedata.normalize("NFKC", c).replace("\u2044", "/")
        previous_super = is_super
        out.append(plain)
        places += [i] * len(plain)
    if previous_super:
        out.append(")")
        places.append(len(text) - 1)
    places.append(len(text))
    return "".join(out), places


_PIECE = re.compile(
    r"""(?P<space>[\s$]+|\\[,;:! ]|\\q?quad(?![A-Za-z])|~(?=\\))
      | (?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9_])|[0-9][0-9_]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?
                 |\.[0-9]+(?:[eE][+-]?[0-9]+)?)
      | (?P<latex>\\(?:[A-Za-z]+|[()\[\]{}|%]))
      | (?P<word>[^\W\d_](?:[^\W_]|_(?!\{))*(?:_\{\w{1,40}\})?)
      | (?P<op>\*\*|<=|>=|==|~=|[-+*/^(){}\[\],=<>~_⌈⌉⌊⌋√%])""",
    re.VERBOSE,
)
_SAME = {"**": "^", "==": "=", "~=": "~"}
_LATEX_OP = {
    "cdot": "*", "times": "*", "ast": "*", "div": "/", "ge": ">=", "geq": ">=", "geqslant": ">=", "gt": ">", "le": "<=",
    "leq": "<=", "leqslant": "<=", "lt": "<", "approx": "~", "simeq": "~", "sim": "~", "lceil": "⌈", "rceil": "⌉",
    "lfloor": "⌊", "rfloor": "⌋", "(": "", ")": "", "[": "", "]": "", "left": "", "right": "", "bigl": "", "bigr": "",
    "big": "", "Big": "", "displaystyle": "", "{": "(", "}": ")", "%": "%",
}  # fmt: skip
_LATEX_WORD = {"log": "log", "ln": "ln", "min": "min", "max": "max", "alpha": "α", "beta": "β", "gamma": "γ"}


def tokenize(text: str) -> list[Token]:
    """The tokens of a formula, the last of kind "end".

    Raises:
        FormulaError: at a character that no formula has.
    """
    plain, places = _characters(text)
    tokens: list[Token] = []
    i, space, depth = 0, False, 0
    while i < len(plain):
        match = _PIECE.match(plain, i)
        at = Token("op", plain[i], places[i])
        if not match:
            raise fail(text, at, f"unexpected {plain[i]!r}")
        kind, value = str(match.lastgroup), match[0]
        if kind == "number" and "," in value and depth:
            value = value.split(",")[0]
        end = i + len(value)
        if kind == "space":
            space = True
        elif kind == "latex":
            end = _latex(text, plain, places, i, value, tokens, space)
            space = False
        else:
            depth += (value in ("(", "{")) - (value in (")", "}"))
            _append(tokens, kind, value, places[i], space)
            space = False
        i = end
    tokens.append(Token("end", "", len(text), space))
    return tokens


def _append(tokens: list[Token], kind: str, value: str, at: int, space: bool) -> None:
    """One more token: numbers in plain form, `B_{crit}` as B_crit, `log_2` as a function with a base."""
    if kind == "word":
        value = value.replace("_{", "_").rstrip("}")
        if re.fullmatch(r"log_[0-9]{1,9}", value):
            tokens += [Token("word", "log", at, space), Token("op", "_", at + 3), Token("number", value[4:], at + 4)]
            return
    if kind == "number":
        value = value.replace(",", "").replace("_", "")
    elif value == "√":
        kind = "root"
    tokens.append(Token(kind, _SAME.get(value, value), at, space))


def _latex(text: str, plain: str, places: list[int], i: int, value: str, tokens: list[Token], space: bool) -> int:
    """Append what a LaTeX command stands for; where it ends."""
    name, at = value[1:], places[i]
    end = i + len(value)
    if name in ("frac", "dfrac", "tfrac"):
        tokens.append(Token("frac", value, at, space))
    elif name == "sqrt":
        tokens.append(Token("root", value, at, space))
    elif name in _LATEX_WORD:
        tokens.append(Token("word", _LATEX_WORD[name], at, space))
    elif name in ("text", "mathrm", "operatorname", "mathit", "textrm"):
        match = re.compile(r"\s*\{([A-Za-z0-9_ /.%-]{1,60})\}").match(plain, end)
        if not match:
            raise fail(text, Token("op", value, at), f"{value} must be followed by a name in braces")
        inner = tokenize(match[1])[:-1]
        start = match.start(1)
        tokens += [Token(t.kind, t.value, places[start + t.at], t.space or space or k == 0) for k, t in enumerate(inner)]
        end = match.end()
    elif name in _LATEX_OP:
        if _LATEX_OP[name]:
            tokens.append(Token("op", _LATEX_OP[name], at, space))
    else:
        raise fail(text, Token("op", value, at), f"{value[:20]} is not a command that is read here")
    return end


_ABOUT = ("about", "approx", "approximately", "roughly", "around", "ca", "circa")


def without_about(tokens: list[Token], known: Collection[str]) -> list[Token]:
    """Without "about", at the start or after a relation, and without a leading "=": `~ 240`, `B > about 240`, `= 240`."""
    out: list[Token] = []
    for t in tokens:
        starts = not out or (out[-1].kind == "op" and out[-1].value in RELATIONS)
        vague = (t.kind == "word" and t.value.lower() in _ABOUT and t.value not in known) or (t.kind, t.value) == ("op", "~")
        if starts and (vague or (not out and (t.kind, t.value) == ("op", "="))):
            continue
        out.append(t)
    return out


_POWER_OF_TEN = re.compile(r"\*10\^[({]?[-+]?[0-9]{1,3}[)}]?")


def shown_digits(tokens: list[Token]) -> int:
    """The significant digits of one plain number, also of 2.4*10^2 and -3; 0 for anything else."""
    tokens = tokens[1:] if tokens and tokens[0].value in ("-", "+") else tokens
    if not tokens or tokens[0].kind != "number":
        return 0
    if len(tokens) > 1 and not _POWER_OF_TEN.fullmatch("".join(t.value for t in tokens[1:])):
        return 0
    mantissa = tokens[0].value.lower().split("e")[0]
    digits = re.sub(r"\.0*$", "", mantissa).replace(".", "").lstrip("0")
    digits += "0" * (len(digits) < 4 and mantissa.endswith(".0"))  # 240.0 says more than 240
    return max(len(digits.rstrip("0")), min(len(digits), 4)) or 1  # the zeros of 13147000000 say nothing


# ---- units ------------------------------------------------------------------------------------------------------------

_PREFIX = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
# Things that are counted: "8 chips" is the number 8.
COUNTED = (
    "chip", "GPU", "TPU", "device", "host", "core", "node", "sequence", "request", "query", "expert", "lane", "kernel",
    "operator", "pass", "layer", "hop", "time", "step", "server",
)  # fmt: skip
_TIME = {"s": 0, "sec": 0, "second": 0, "seconds": 0, "ms": -3, "us": -6, "μs": -6, "ns": -9}


def _units() -> dict[str, tuple[str, Expr]]:
    """Every unit by its written name: what it is in SI, and how many of these one is."""
    table: dict[str, tuple[str, Expr]] = {w: ("s", sym.number(10) ** e) for w, e in _TIME.items()}
    table |= {"min": ("s", sym.number(60)), "minutes": ("s", sym.number(60))}
    table |= dict.fromkeys(("h", "hour", "hours"), ("s", sym.number(3600)))
    for name, days in (("day", 1), ("week", 7), ("year", "365.25")):
        table |= dict.fromkeys((name, f"{name}s"), ("s", sym.number(86400) * sym.number(days)))
    for prefix, e in _PREFIX.items():
        scale = sym.number(10) ** e
        table |= {prefix + w: ("FLOP", scale) for w in ("FLOP", "FLOPs", "flop", "flops", "Flop", "OP", "OPs", "ops")}
        table |= {prefix + w: ("FLOP/s", scale) for w in ("FLOPS", "OPS")}
        table |= {prefix + w: ("byte", scale) for w in ("B", "byte", "bytes", "Byte", "Bytes")}
        table |= {prefix + w: ("bit", scale) for w in ("b", "bit", "bits", "Bit")}
        table |= {prefix + w: ("1/s", scale) for w in ("Hz", "QPS")}
        table |= {f"{prefix}{w}": (w.rstrip("s"), scale) for w in ("token", "tokens", "param", "params", "parameters")}
    table |= {w + s: (w, sym.ONE) for w in COUNTED for s in ("", "s")}
    table["passes"] = ("pass", sym.ONE)
    for prefix, e in _BINARY.items():
        table |= {prefix + w: ("byte", sym.number(2) ** e) for w in ("B", "byte", "bytes")}
    return table


UNITS = _units()


def read_unit(tokens: list[Token], known: Collection[str] | None) -> tuple[list[Token], str, Expr]:
    """Cut a unit off the end: "240 FLOP/byte", "9.8 ms", "(2*B*D) bytes"; the tokens left, the SI unit, the scale.

    Names of sizes win: with sizes G and B, "4 GB" is 4*G*B.
    """
    body, end = tokens[:-1], tokens[-1]
    if body and body[-1].value == "%":
        return [*body[:-1], end], "", sym.number(1) / 100
    if not body or not _is_unit(body[-1], known):
        return tokens, "", sym.ONE
    unit, scale = UNITS[body[-1].value]
    rest = body[:-1]
    if len(rest) > 1 and rest[-1].value in ("/", "per"):
        top, base, above = rest[:-1], "1", sym.ONE
        if _is_unit(top[-1], known):
            base, above = UNITS[top[-1].value]
            top = top[:-1]
        elif top[-1].value == "1" and len(top) > 1 and top[-1].space and _ends_value(top[-2]):
            top = top[:-1]  # 0.27 1/s
        unit, scale, rest = f"{base}/{unit}", above / scale, top
    if rest and _ends_value(rest[-1]):
        return [*rest, end], unit, scale
    return tokens, "", sym.ONE


def _ends_value(t: Token) -> bool:
    """Whether a unit can follow."""
    return t.kind in ("number", "word") or t.value in (")", "}", "]")


def _is_unit(t: Token, known: Collection[str] | None) -> bool:
    """Whether a word is a unit and cannot be read as sizes."""
    if t.kind != "word" or t.value not in UNITS or t.value in FUNCTIONS:
        return False
    if known is None:
        return len(t.value) > 1 or t.value == "s"
    return not _spells(t.value, frozenset(known))


def _spells(word: str, known: frozenset[str]) -> bool:
    """Whether a word is a run of known names."""
    reach = {0}
    for i in range(len(word)):
        if i in reach:
            reach |= {i + len(n) for n in known if word.startswith(n, i)}
    return len(word) in reach


def parts(word: str, known: Collection[str]) -> int:
    """How many known names a word is a run of, at least; 0 where it is none."""
    least = {0: 0}
    for i in range(len(word)):
        if i in least:
            for name in known:
                if name and word.startswith(name, i):
                    least[i + len(name)] = min(least.get(i + len(name), 99), least[i] + 1)
    return least.get(len(word), 0)

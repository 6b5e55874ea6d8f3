"""All rules, and the table of what each operator counts, as docs/counting.md prints it."""

from __future__ import annotations

import importlib
from pathlib import Path

from costir.ops.registry import RULES

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def load_rules() -> None:
    """Import every module of rules beside this one; each registers its rules on import."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", "registry", "table"):
            importlib.import_module(f"costir.ops.{path.stem}")


def counting_table() -> str:
    """A markdown table with one row per way of counting: kind, what is counted, the operators, sorted by kind and name."""
    load_rules()
    groups: dict[tuple[str, str], list[str]] = {}
    for op, entry in RULES.items():
        groups.setdefault((entry.kind, entry.counts), []).append(op.removeprefix("aten."))
    lines = ["| kind | what one call counts | operators |", "|---|---|---|"]
    for (kind, counts), ops in sorted(groups.items(), key=lambda item: (item[0][0], min(item[1]))):
        lines.append(f"| {kind} | {_cell(counts)} | {' '.join(f'`{_cell(op)}`' for op in _folded(ops))} |")
    return "\n".join(lines) + "\n"


def _folded(ops: list[str]) -> list[str]:
    """Names in order, an in-place form folded into its operator: "exp", "exp_" become "exp(_)"."""
    known = set(ops)
    both = {op for op in known if f"{op}_" in known}
    return [f"{op}(_)" if op in both else op for op in sorted(known) if not (op.endswith("_") and op[:-1] in both)]


def _cell(text: str) -> str:
    """Text that does not end a table cell."""
    return text.replace("|", "\\|")


def with_table(text: str) -> str:
    """The document with the table between its two markers made anew.

    Raises:
        ValueError: where the markers are missing.
    """
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"the document has no {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n\n{counting_table()}\n{END}{tail}"


if __name__ == "__main__":
    document = Path("docs/counting.md")
    document.write_text(with_table(document.read_text()))

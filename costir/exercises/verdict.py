"""What came of an answer."""

from __future__ import annotations

import html
from dataclasses import dataclass

VERDICTS = ("right", "rounding", "limit", "convention", "slip", "wrong", "unreadable")
GOOD = ("right", "rounding")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an answer.

    Attributes:
        verdict: "right"; "rounding" (right to the digits given, or inside the tolerance); "limit" (right in the limit where the
            exact form is asked, or the reverse); "convention" (right under another convention); "slip" (a printed error);
            "wrong"; "unreadable".
        exercise, part: what was answered.
        answer: as typed.
        diagnosis: what a wrong answer forgot, or the convention or slip that it is; "" where nothing fits.
        message: one sentence.
        key: the name of the diagnosis, "bits", "mistake", ...; "" where there is none.
        notes: how ambiguous places were read.
    """

    verdict: str
    exercise: str
    part: str
    answer: str
    diagnosis: str
    message: str
    key: str = ""
    notes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether the answer counts as right: exactly or up to rounding."""
        return self.verdict in GOOD

    def __str__(self) -> str:
        return f"{self.exercise}.{self.part}: {self.message}" if self.part else f"{self.exercise}: {self.message}"

    def _repr_html_(self) -> str:
        color = {"right": "#137333", "rounding": "#137333", "wrong": "#a50e0e", "unreadable": "#a50e0e"}
        shown = html.escape(self.message)
        return (
            f'<div><b style="color:{color.get(self.verdict, "#8a5a00")}">{self.verdict}</b> '
            f"<code>{html.escape(self.answer[:200])}</code> &mdash; {shown}</div>"
        )

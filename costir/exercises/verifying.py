"""All faults of a bank, derivations too: what its author runs before students see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from costir import symbolic as sym
from costir.errors import CostirError
from costir.exercises.derive import derive
from costir.exercises.records import Exercise, Part
from costir.exercises.reference import Reference, put
from costir.exercises.vetting import Fault, faults

CLOSE = 1e-6


def verify(exercises: Iterable[Exercise], trusted: bool = False) -> Iterator[tuple[Exercise, Fault]]:
    """Every fault, exercise by exercise. What is derived is compared with the answer, and each mistake with what is right.

    Args:
        exercises: of a bank; `catalog.records_of` gives those of one with faults.
        trusted: whether Python files may be run.
    """
    for exercise in exercises:
        found = list(faults(exercise, trusted))
        yield from ((exercise, f) for f in found)
        if found:
            continue  # one cause is not said twice
        for part in exercise.parts:
            if part.kind not in ("choice", "open"):
                yield from (
                    (exercise, Fault(f"part {part.ident}{w and ', '}{w}", *said)) for w, said in _of_part(exercise, part)
                )


def _of_part(exercise: Exercise, part: Part) -> Iterator[tuple[str, tuple[str, ...]]]:
    try:
        reference = Reference(exercise, part)
        if part.derive and part.answer:
            _compare(exercise, part, reference)
    except CostirError as error:
        message = error.message.removeprefix(f"exercise {exercise.ident}, part {part.ident}: ")
        yield "derive" if part.derive else "answer", (message.partition("\n")[0], error.hint)
        return
    except (ArithmeticError, ValueError, TypeError, NotImplementedError, RecursionError) as error:
        yield "derive", (f"it has no value: {type(error).__name__}", "check divisions by zero and what has no limit")
        return
    if not part.answer and part.kind == "number" and reference.right.number is None and reference.right.valued.free_symbols:
        yield "derive", ("a number is asked, and what is derived has letters without a value", "give them one in with")
    for i, known in enumerate((k for k in reference.others if k.other is not None and k.other.kind == "mistake"), 1):
        if known.at == reference.right.at and reference.equal(known.expr, reference.right.expr) and not known.relation:
            yield f"mistake {i}", ("it is the right answer", "change it, or leave it out")


def _compare(exercise: Exercise, part: Part, reference: Reference) -> None:
    right = reference.right
    found = derive(part.derive, exercise.folder) * sym.number(reference.unit.scale)
    if sym.equal(found, right.expr):
        return
    value, wanted = put(found, part.values), right.valued
    if sym.equal(value, wanted):
        return
    numbers = sym.to_fraction(value), sym.to_fraction(wanted)
    if part.tolerance and None not in numbers and abs(numbers[0] - numbers[1]) <= CLOSE * abs(numbers[1]):  # type: ignore[operator,arg-type]
        return
    raise CostirError(f"{sym.show(found)[:80]} is derived, and the answer is {part.answer[:80]}", "one of them is wrong")

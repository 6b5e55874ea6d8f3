"""The built-in bank: whole in both languages, answers accepted, mistakes named, derivations equal to the answers."""

from __future__ import annotations

import re

import pytest
import yaml

from costir import symbolic as sym
from costir.exercises import yamlfile
from costir.exercises.catalog import BUILT_IN, ORDER, built_in, validate
from costir.exercises.checker import check_part, reference_of
from costir.exercises.derive import derive
from costir.exercises.reference import Known, Reference, put
from costir.network import Network

EXERCISES = list(built_in().exercises().values())
PARTS = [pytest.param(e, p, id=f"{e.ident}.{p.ident}") for e in EXERCISES for p in e.parts]
CHECKED = [p for p in PARTS if p.values[1].kind not in ("choice", "open")]
DERIVED = [p for p in CHECKED if p.values[1].derive]
CHOICES = [p for p in PARTS if p.values[1].kind == "choice"]


@pytest.mark.parametrize("prefix", ORDER)
def test_files_follow_the_schema(prefix):
    validate(yamlfile.read(BUILT_IN / f"{prefix}.yaml"), prefix)


def test_the_bank_is_whole():
    assert len(EXERCISES) >= 101
    assert len({e.ident for e in EXERCISES}) == len(EXERCISES)
    assert sum(any(p.derive for p in e.parts) for e in EXERCISES) >= 60


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.ident)
def test_every_text_is_there_in_both_languages(exercise):
    texts = [
        exercise.prompt,
        exercise.title,
        *exercise.hints,
        *exercise.solution,
        *(x.words for x in exercise.letters.values()),
    ]
    for p in exercise.parts:
        texts += [
            p.ask,
            *(o.words for o in p.others),
            *(c.words for c in p.choices),
            *(c.why for c in p.choices if not c.right),
        ]
        texts += list(p.terms.values())
    assert len(exercise.hints) >= 2
    assert exercise.solution
    for words in texts:
        assert set(words.by_language) == {"en", "zh"}, words.say("en")
        chinese = words.say("zh")  # a line of formulas alone has no words in any language
        assert (
            any("\u4e00" <= c <= "\u9fff" for c in chinese)
            or "=" in chinese
            or not re.search(r"[A-Za-z]{6}|\b(?:the|and|is)\b", chinese)
        )


def forms(known: Known, text: str, reference: Reference) -> list[str]:
    """How a student may write it: as an expression, and as numbers with more or fewer digits, with a unit."""
    out = [text] if text else []
    if known.number is not None:
        value, unit = float(known.number / reference.unit.scale), reference.part.unit
        out += [f"{value:.6g}", f"{value:.4g}", f"{value:.5g} {unit}" if unit else f"= {value:.5g}"]
    return out


@pytest.mark.parametrize(("exercise", "part"), CHECKED)
def test_stored_answers_are_accepted(exercise, part):
    reference = reference_of(exercise, part)
    for text in forms(reference.right, part.answer, reference):
        for lang in ("en", "zh"):
            verdict = check_part(exercise, part.ident, text, lang)
            assert verdict.verdict in ("right", "rounding"), (text, verdict.message)


@pytest.mark.parametrize(("exercise", "part"), CHECKED)
def test_known_other_answers_are_named(exercise, part):
    reference = reference_of(exercise, part)
    for known in reference.others:
        twins = [k.other.kind for k in reference.others if k.number is not None and k.number == known.number]
        wanted = {{"mistake": "wrong"}.get(kind, kind) for kind in (known.other.kind, *twins)}
        # With the exercise's letters only the numbers differ: what is typed in letters is right.
        right = reference.right
        same = reference.equal(known.expr, right.expr) or put(known.expr, right.at) == right.valued
        for text in forms(known, "" if same else known.other.answer, reference):
            verdict = check_part(exercise, part.ident, text, "en")
            if verdict.verdict == "rounding" and verdict.key == "rounding":
                continue  # the right answer, rounded to as many digits, is the same number
            assert verdict.verdict in wanted, (text, verdict.message)
            assert verdict.diagnosis, text
        if known.other.ident and not same:
            assert check_part(exercise, known.other.ident, known.other.answer, "en").right


@pytest.mark.parametrize(("exercise", "part"), CHOICES)
def test_choices(exercise, part):
    for choice in part.choices:
        for typed in (choice.ident, *choice.words.by_language.values(), *choice.also):
            verdict = check_part(exercise, part.ident, typed, "zh")
            assert verdict.right == choice.right, (typed, verdict.message)
            assert choice.right or verdict.diagnosis


@pytest.mark.parametrize(("exercise", "part"), DERIVED)
def test_costir_derives_the_answer(exercise, part):
    if not part.answer:
        return
    right = reference_of(exercise, part).right
    scale = sym.number(reference_of(exercise, part).unit.scale)
    found = derive(part.derive, exercise.folder) * scale
    if sym.equal(found, right.expr):
        return
    found, wanted = put(found, part.values), right.valued
    exact = not found.free_symbols and not wanted.free_symbols and part.tolerance
    assert abs(found / wanted - 1) < 1e-6 if exact else sym.equal(found, wanted)


@pytest.mark.parametrize(("exercise", "part"), DERIVED)
def test_derivations_ask_the_engine(exercise, part):
    assert any(isinstance(q, dict) and {"subject", "collective", "chip"} & q.keys() for q in part.derive["let"].values())


# ----------------------------------------------------------------------------------------------------- on several devices

CHAPTERS = ("sh", "tr", "gpu")  # on sharding, training and GPUs
BESIDES = ("rl.x2chip", "seed.ex3", "seed.think4", "seed.think8", "seed.gold3", "tpu.q1", "inf.pq", "inf.q4", "inf.q7",
           "ai.e3", "ai.e9", "ai.e10", "ai.q1", "ai.q3", "at.e4", "at.e6", "at.e8", "at.e9", "at.q2")  # fmt: skip
ON_DEVICES = [p for p in CHECKED if p.values[0].chapter in CHAPTERS or p.values[0].ident in BESIDES]
WITHOUT_DEVICES = {  # parts of these exercises that no device's share and no collective answers
    "gpu.1": "one chip: its lanes, clocks, rates, memories",
    "gpu.2.1.bw": "ports of switches",
    **dict.fromkeys([f"gpu.3.1.{p}" for p in ("SU_spine", "spine", "per_node", "per_GPU")], "cables and switches"),
    "gpu.3.2": "cables and switches",
    "ai.q3.chips": "how many memories hold it",
    "gpu.5.2.TP_used": "the largest power of two below what is derived",
    **dict.fromkeys(["tr.q1", "at.q2.params"], "the parameters of a model"),
    **dict.fromkeys(["ai.q1.flops", "at.q2.per_token", "at.q2.total"], "all devices together"),
}  # fmt: skip


def on_mesh(part):
    return any(isinstance(q, dict) and "mesh" in q for q in part.derive.get("let", {}).values())


def test_answers_on_devices_come_from_a_mesh():
    """From sharded notation, a model on a mesh, or a collective; the rest has a reason not to."""
    names = {f"{e.ident}.{p.ident}": p for e, p in (row.values for row in ON_DEVICES)}
    without = [n for n, p in names.items() if not on_mesh(p)]
    assert [n for n in without if not any(n.startswith(w) for w in WITHOUT_DEVICES)] == []
    assert [w for w in WITHOUT_DEVICES if not any(n.startswith(w) for n in without)] == []
    assert len(names) - len(without) >= 130


RATIOS = {  # no rate of a link is in these
    "sh.q4.D_both", "sh.q6.c_comms", "sh.q9.ratio", "tr.q3.X_opt", "at.e9.X_opt", "inf.q7.X_opt", "inf.q7.N_min",
    "gpu.4.2.gain",
}  # fmt: skip
OF_LINKS = [
    p for p in ON_DEVICES if any(isinstance(q, dict) and q.get("quantity", "").startswith(("network_time", "critical"))
                                 for q in p.values[1].derive.get("let", {}).values())
]  # fmt: skip


def test_answers_on_links_hang_on_their_rates(monkeypatch):
    """With links of half the rate all of them are others, but for ratios."""
    before = {f"{e.ident}.{p.ident}": derive(p.derive, e.folder) for e, p in (row.values for row in OF_LINKS)}
    rate = Network.rate
    monkeypatch.setattr(Network, "rate", lambda *args: rate(*args) / 2)
    after = {f"{e.ident}.{p.ident}": derive(p.derive, e.folder) for e, p in (row.values for row in OF_LINKS)}
    assert {n for n in before if sym.equal(before[n], after[n])} == RATIOS


@pytest.mark.parametrize("prefix", ORDER)
def test_both_yaml_readers_read_the_same(prefix):
    """Some machines have PyYAML without libyaml."""
    text = (BUILT_IN / f"{prefix}.yaml").read_text(encoding="utf-8")
    assert yaml.load(text, Loader=yaml.SafeLoader) == yaml.load(text, Loader=yamlfile.LOADER)

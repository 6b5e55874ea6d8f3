"""Derivations on several devices: collectives, plans, rates as letters, crossings to go on with; and what is refused."""

from __future__ import annotations

import pytest
from exercise_banks import bank_of, refused

from costir import symbolic as sym
from costir.errors import CostirError
from costir.exercises.catalog import BUILT_IN, Bank
from costir.exercises.derive import derive
from costir.formula import parse_formula

GATHER = {"collective": "all_gather", "bytes": "V", "quantity": "network_time"}
PRODUCT = {"subject": "x[B,D] . W[D_X,F] -> y[B,F]", "mesh": {"X": 4}, "chip": "tpu_v5p@book", "algorithm": "book"}
BOTH = {
    "subject": "x[B_XU,D_Y] . W[D_XU,F_Y] -> h[B_XU,F_Y]",
    "mesh": {"X": 16, "U": 16, "Y": 16},
    "base": {"B": 1048576, "D": 8192, "F": 32768},
    "plan": "all_gather x over Y, then all_gather W over X, U",
}

FOUND = [  # a quantity, and what it is by hand: bytes over the rate of what is at work
    ({**GATHER, "mesh": {"N": 8}, "chip": "h100@book", "set": {"link.nvlink.one_way": "W"}}, "V*(N - 1)/(N*W)"),
    ({**GATHER, "mesh": {"N": 8}, "chip": "h100@book"}, "V*(N - 1)/(N*450e9)"),
    ({**GATHER, "mesh": {"X": 4}, "chip": "tpu_v5e@book", "set": {"link.ici.link_one_way": "W"}}, "V*(X - 1)/(X*W)"),
    ({**GATHER, "mesh": {"X": 4}, "chip": "tpu_v5e@book", "set": {"link.ici.one_way": "4*W"}}, "V*(X - 1)/(X*W)"),
    ({**GATHER, "mesh": {"X": 4, "Y": 4}, "axes": ["Y"], "chip": "tpu_v5e@book"}, "V*(Y - 1)/(Y*45e9)"),
    ({**GATHER, "mesh": {"X": 4}, "quantity": "network"}, "V*(X - 1)/X"),
    ({**GATHER, "mesh": {"X": 4}, "chip": "tpu_v5e", "quantity": "latency"}, "(X - 1)*1e-6"),
    ({**GATHER, "mesh": {"N": 8}, "chip": "h100@book", "set": {"link.nvlink.latency": 1e-6}, "quantity": "latency"}, "1e-6"),
    ({**GATHER, "mesh": {"N": 8}, "chip": "h100@book", "set": {"link.nvlink.one_way": "450G"}}, "V*(N - 1)/(N*450e9)"),
    ({**GATHER, "mesh": {"N": 8}, "chip": "h100@book", "set": {"link.nvlink.one_way": "2*450e9/2"}}, "V*(N - 1)/(N*450e9)"),
    ({**GATHER, "mesh": {"M": 2}, "links": {"M": "scaleout"}, "chip": "h100@book"}, "V*(M - 1)/(M*50e9)"),
    ({**PRODUCT, "plan": "all_gather", "quantity": "network_time"}, "2*D*F/180e9"),
    ({**PRODUCT, "plan": "all_reduce", "quantity": "network_time"}, "4*B*F/180e9"),
    ({**PRODUCT, "plan": "all_reduce", "quantity": "network_time", "sizes": {"B": "4*F"}}, "16*F^2/180e9"),
    ({**PRODUCT, "plan": "all_reduce", "quantity": "compute_time", "set": {"matrix.bf16": "C"}}, "2*B*D*F/(X*C)"),
    ({**PRODUCT, "plan": "all_gather", "quantity": "compute_time"}, "2*B*D*F/459e12"),
    ({**PRODUCT, "plan": "all_reduce", "quantity": "critical D per device"}, "5100"),
    ({**PRODUCT, "plan": "all_gather", "quantity": "critical B", "set": {"link.ici.link_one_way": 4.5e10}}, "5100"),
    ({**BOTH, "quantity": "network", "over": ["Y"]}, "2*B*D/(X*U)*(Y - 1)/Y"),
    ({**BOTH, "quantity": "network", "over": ["X", "U"]}, "2*D*F/Y*(X*U - 1)/(X*U)"),
]  # fmt: skip


@pytest.mark.parametrize(("quantity", "by_hand"), FOUND)
def test_a_quantity_is_what_it_is_by_hand(quantity, by_hand):
    assert sym.equal(derive({"let": {"q": quantity}}, "."), parse_formula(by_hand).expr)


def test_two_links_stay_side_by_side_where_letters_leave_open_which_is_slower():
    letters = {"link.nvlink.one_way": "G", "link.scaleout.one_way": "S"}
    let = {"t": {**GATHER, "mesh": {"M": 4, "N": 8}, "chip": "h100@book", "set": letters}}
    twice = derive({"let": let, "formula": "2*t", "rename": {"V": "U/2", "M": "4"}}, ".")
    found = derive({"let": let}, ".")
    for slow, fast in ((1, 1000), (1000, 1)):
        at = {"V": 64, "M": 4, "N": 8, "G": slow, "S": fast}
        by_hand = max(64 * 7 / 8 / slow, 64 * 3 / 4 / 8 / fast)
        assert float(sym.evaluate(found, {sym.size(n): v for n, v in at.items()})) == pytest.approx(by_hand)
        at = {**at, "U": 2 * at["V"]}
        assert float(sym.evaluate(twice, {sym.size(n): v for n, v in at.items()})) == pytest.approx(2 * by_hand)


def test_the_limit_of_a_max_is_the_max_of_the_limits():
    letters = {"link.nvlink.one_way": "G", "link.scaleout.one_way": "S/8"}
    let = {"t": {**GATHER, "mesh": {"M": 4, "N": 8}, "chip": "h100@book", "algorithm": "book", "set": letters}}
    assert sym.equal(derive({"let": let, "large": ["M"]}, "."), parse_formula("max(V/G, V/S)").expr)
    with pytest.raises(CostirError, match=r"the limit of .* is not found"):
        derive({"let": let, "formula": "2*t", "large": ["M"]}, ".")


def test_what_differs_on_one_side_of_a_max_differs():
    one, other, same = (
        parse_formula(f).expr for f in ("max(2*D*F/W, 2*B*D*F/C)", "max(4*D*F/W, 2*B*D*F/C)", "2*D*F*max(1/W, B/C)")
    )
    assert not sym.equal(one, other)
    assert sym.equal(one, same)


def test_a_crossing_to_go_on_with():
    """Where gathering weights takes as long as moving activations, X = sqrt(2*B*N/F), both take 2*B*D/(X*W)."""
    of = {**BOTH, "chip": "tpu_v5p@book", "algorithm": "book", "set": {"link.ici.link_one_way": "W/2"}}
    sizes = {"sizes": {"X": "X/U", "Y": "N/X"}}
    let = {
        "a": {**of, **sizes, "quantity": "network_time", "over": ["X", "U"]},
        "b": {**of, **sizes, "quantity": "network_time", "over": ["Y"]},
        "best": {"cross": ["a", "b"], "for": "X"},
        "t": {**of, "quantity": "network_time", "over": ["Y"], "sizes": {"X": "best/U", "Y": "N/best"}},
    }
    assert sym.equal(derive({"let": let}, "."), parse_formula("sqrt(2*B*F/N)*D/W").expr)


def test_a_model_on_a_mesh():
    """Two matrices, data parallel: 8*B*D*F FLOPs of a backward pass over all, an all_reduce of both gradients on each."""
    of = {"subject": "layers.py:pair", "mesh": {"X": 4}, "parallel": "dp=X", "dtype": "bf16", "chip": "tpu_v5p@book"}
    let = {
        "all": {**of, "phase": "backward", "quantity": "matmul_flops"},
        "forward": {**of, "quantity": "matmul_flops"},
        "sent": {**of, "phase": "backward", "quantity": "network"},
    }
    assert sym.equal(derive({"let": let, "formula": "all - forward"}, str(BUILT_IN)), parse_formula("8*B*D*F/X").expr)
    assert sym.equal(derive({"let": let}, str(BUILT_IN)), parse_formula("2*4*D*F*(X - 1)/X").expr)


def test_what_one_device_holds_in_training():
    """Weights and gradients bf16, two moments fp32: 10 bytes a parameter beside the gradients; fsdp divides them all."""
    of = {"subject": "layers.py:pair", "mesh": {"X": 4}, "dtype": "bf16", "phase": "train"}
    for parallel, by_hand in (("dp=X", "10*2*D*F"), ("fsdp=X", "10*2*D*F/X")):
        kept = {n: {**of, "parallel": parallel, "quantity": f"held {n}"} for n in ("parameters", "optimizer state")}
        let = {"w": kept["parameters"], "s": kept["optimizer state"]}
        assert sym.equal(derive({"let": let, "formula": "w + s"}, str(BUILT_IN)), parse_formula(by_hand).expr)
    with pytest.raises(CostirError, match="a run holds no 'weights'"):
        derive({"let": {"w": {**of, "parallel": "dp=X", "quantity": "held weights"}}}, str(BUILT_IN))


WRONG = [
    ({**GATHER, "mesh": {"N": 8}}, "depends on the chip"),
    ({"collective": "all_gather", "quantity": "network"}, "has no bytes"),
    ({**GATHER, "collective": "gather", "mesh": {"N": 8}}, "no collective 'gather'"),
    ({**GATHER, "mesh": {"N": 8}, "quantity": "flops"}, "no quantity of a collective"),
    ({**GATHER, "mesh": {"N": 8}, "axes": ["M"], "quantity": "network"}, "no axis 'M'"),
    ({**GATHER, "mesh": {"N": 8}, "chip": "h100@book", "quantity": "latency"}, "no link.nvlink.latency"),
    ({**GATHER, "mesh": {"N": 10}, "chip": "h100@book"}, "do not fill"),
    ({**GATHER, "mesh": {"N": 8}, "chip": "h100@book", "set": {"link.ici.one_way": "W"}}, "has no 'link.ici.one_way'"),
    ({**GATHER, "mesh": {"N": 8}, "chip": "h100@book", "set": {"link.nvlink.one_way": 0}}, "link.nvlink.one_way = '0' is not"),
    ({**PRODUCT, "plan": "all_to_all", "quantity": "flops"}, "no way to compute it has 'all_to_all'"),
    ({**PRODUCT, "quantity": "flops", "over": ["X"]}, "is not of collectives"),
    ({**PRODUCT, "quantity": "network", "over": ["X"], "op": "einsum"}, "is not of collectives"),
    ({**GATHER, "mesh": {"N": 8}, "sizes": {"N": 4}}, "sizes is not for a collective"),
    ({**GATHER, "mesh": {"N": 8}, "subject": "X[a,b]"}, "subject is not for a collective"),
    ({**PRODUCT, "quantity": "critical B", "set": {"matrix.bf16": "C"}}, "whose rates are numbers"),
    ({**PRODUCT, "quantity": "network_times"}, "no quantity 'network_times'"),
]  # fmt: skip


@pytest.mark.parametrize(("quantity", "words"), WRONG)
def test_what_cannot_be_derived_is_refused(quantity, words):
    with pytest.raises(CostirError, match=words):
        derive({"let": {"q": quantity}}, ".")


def test_what_quantities_share_is_written_once(tmp_path):
    shared = 'of: {subject: "X[a,b_N] . Y[b_N,c]", mesh: {N: 4}, chip: h100, quantity: write}'
    let = "let: {f: {quantity: flops}, C: {quantity: matrix.bf16}, n: 2, X: {cross: [a, b], for: a}}"
    bank = bank_of(tmp_path, f"{{id: p, kind: formula, answer: 1, derive: {{{shared}, {let}}}}}")
    assert [*Bank(bank).exercises()] == ["my.1"]
    (part,) = Bank(bank).find("my.1").parts
    common = {"subject": "X[a,b_N] . Y[b_N,c]", "mesh": {"N": 4}, "chip": "h100"}
    f, C, n, X = part.derive["let"].values()
    assert (f, C) == ({**common, "quantity": "flops"}, {**common, "quantity": "matrix.bf16"})
    assert (n, X) == (2, {"cross": ["a", "b"], "for": "a"})
    assert derive({"let": {"C": C}}, ".") == sym.number("989.4e12")


@pytest.mark.parametrize("let", ["q: {chip: h100}", "q: {cross: [1, 2]}", "q: {cross: [1, 2], for: X, chip: h100}"])
def test_a_quantity_names_what_it_is(exercise, tmp_path, let):
    refused(
        exercise("list", "--bank", bank_of(tmp_path, f"{{id: p, kind: formula, derive: {{let: {{{let}}}}}}}")), "my.1", "let"
    )

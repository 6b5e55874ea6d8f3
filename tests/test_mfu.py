"""Utilisation of measured runs: against formulas by hand, and laws that rates, times, chips and devices keep."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import costir
from costir import cli, mfu_view, render
from costir.errors import CostirError
from costir.hardware import load_chip
from costir.utilisation import assumed_phase, mfu

MATMUL = "bf16[B,D] . bf16[D,F] -> bf16[B,F]"
LLAMA, MIXTRAL = (str(Path(__file__).parent.parent / "examples" / n) for n in ("llama3-8b", "mixtral-8x7b"))
H100 = Fraction(9894, 10) * 10**12  # FLOP/s in bf16


def perceptron(B=64, D=1024, F=4096):
    return nn.Sequential(nn.Linear(D, F, bias=False), nn.ReLU(), nn.Linear(F, D, bias=False)), (torch.zeros(B, D),), {}


def run(capsys, *arguments):
    code = cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


# ------------------------------------------------------------------------------------------------------ a language model


@pytest.fixture(scope="module")
def llama():
    """Llama-3-8B at T = 8192, 10,000 tokens a second on one H100."""
    return mfu(LLAMA, "h100", rate="10000tok/s", sizes={"T": 8192})


T, D, F, V, L, WIDTHS = 8192, 4096, 14336, 128256, 32, 2 * 4096 + 2 * 1024  # WIDTHS: of q, o and of the grouped k, v
WEIGHTS = L * (WIDTHS * D + 3 * D * F) + V * D  # that multiply


def test_full_attention_is_palms_formula(llama):
    """6 N + 12 L H Q T per token, with N the weights that multiply and H heads of width Q: H Q = D."""
    per_token = 6 * WEIGHTS + 12 * L * D * T
    assert per_token * T == 3 * (524288 * T * T + 15009316864 * T)
    assert llama.flops("full") == per_token * T
    assert llama.full == per_token * 10_000 / H100
    assert f"{float(llama.full):.1%}" == "58.5%"


def test_causal_attention_counts_the_pairs_that_are_left(llama):
    """Query i sees i + 1 keys; four FLOPs per pair and width, in each layer."""
    pairs = sum(range(1, T + 1))
    assert llama.flops("causal") == 3 * (2 * WEIGHTS * T + 4 * L * D * pairs)
    assert llama.causal == llama.flops("causal") / T * 10_000 / H100
    assert f"{float(llama.causal):.1%}" == "52.0%"


def test_six_flops_per_parameter(llama):
    """All parameters: those that multiply, the embedding, two norms a layer and one at the end."""
    params = WEIGHTS + V * D + (2 * L + 1) * D
    assert llama.params == llama.active == params
    assert llama.by_parameters == 6 * params * 10_000 / H100
    assert f"{float(llama.by_parameters):.1%}" == "48.7%"


def test_hardware_computes_the_scores_once_more(llama):
    """The flash kernel's backward pass has five products where the forward pass has two: 7/6 of three forward passes."""
    attention = 3 * 4 * L * D * T * T
    assert llama.flops("hardware") == llama.flops("full") + Fraction(attention, 6)
    assert round(llama.flops("hardware") / T / 10**9, 2) == Fraction("60.06")
    assert llama.hardware > llama.full


def test_the_assumption_is_said(llama):
    assert (llama.phase, llama.assumed) == ("train", True)
    text = render.render(mfu_view.utilisation(llama))
    assert "that of a training step; --phase forward if not" in text
    assert "bf16 989.4 TFLOP/s, dense" in text
    for row in ("58.53 %", "52.02 %", "48.70 %", "60.70 %"):
        assert text.count(row) == 1
    assert "shortcut" not in text  # is about bytes


def test_a_forward_pass_counts_once(llama):
    found = mfu(LLAMA, "h100", rate="10000tok/s", sizes={"T": 8192}, phase="forward")
    assert found.flops("full") == 524288 * T * T + 15009316864 * T
    for convention in ("full", "causal", "parameters"):
        assert 3 * found.flops(convention) == llama.flops(convention)
    assert found.flops("hardware") is None
    assert found.hardware == found.full
    assert not found.assumed


# ------------------------------------------------------------------------------------------------------------ other models


def test_a_perceptron_by_hand():
    """Forward two products, 4*B*D*F; backward three, since nobody asks for the gradient of the input: 10*B*D*F in all."""
    found = mfu(perceptron, "h100", time="10ms", tokens="B", dtype="bf16")
    one = 2 * 64 * 1024 * 4096
    assert [found.flops(c) for c in ("full", "causal", "parameters", "hardware")] == [6 * one, 6 * one, 6 * one, 5 * one]
    assert found.full == Fraction(6 * one) / Fraction(1, 100) / H100
    assert any("gradients of inputs" in n for n in found.notes)
    assert any("causal changes nothing" in n for n in found.notes)


def test_without_tokens_there_is_no_6n_and_a_note_says_so():
    found = mfu(perceptron, "h100", time="10ms")
    assert found.by_parameters is None
    assert found.tokens is None
    assert any("--tokens" in n for n in found.notes)
    assert "FLOPs/step" in render.render(mfu_view.utilisation(found))


def test_activations_computed_again_are_the_hardwares():
    class Again(nn.Module):
        def __init__(self, D, F):
            super().__init__()
            self.first, self.up, self.down = nn.Linear(D, D), nn.Linear(D, F), nn.Linear(F, D)

        def forward(self, x):
            block = lambda y: torch.sin(self.down(torch.relu(self.up(y))))
            return checkpoint(block, self.first(x), use_reentrant=False)

    build = lambda B=8, D=16, F=64: (Again(D, F), (torch.zeros(B, D),), {})
    found = mfu(build, "h100", time="1us")
    forward, first = 2 * 8 * (16 * 16 + 2 * 16 * 64), 2 * 8 * 16 * 16
    assert found.flops("full") == 3 * forward
    assert found.flops("hardware") == 3 * forward - first + (forward - first)


def decoder(dropout):
    """One attention layer that is told that it is causal, under a linear layer."""

    class Attention(nn.Module):
        def __init__(self, D):
            super().__init__()
            self.inner = nn.Linear(D, D, bias=False)

        def forward(self, x):
            q = self.inner(x).unflatten(-1, (2, -1)).transpose(1, 2)
            p = dropout if self.training else 0.0
            return functional.scaled_dot_product_attention(q, q, q, dropout_p=p, is_causal=True)

    return lambda B=2, T=32, D=16: (Attention(D), (torch.zeros(B, T, D),), {})


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_dropout_does_not_hide_the_mask(dropout):
    """With dropout torch writes the scores out, and no operator knows which are masked."""
    found = mfu(decoder(dropout), "h100", rate="1step/s")
    linear, pairs = 2 * 2 * 32 * 16 * 16, 32 * 33 // 2
    assert found.flops("full") == 3 * (linear + 4 * 2 * 16 * 32 * 32)
    assert found.flops("causal") == 3 * (linear + 4 * 2 * 16 * pairs)
    assert any("without dropout" in n for n in found.notes) == bool(dropout)
    assert not any("changes nothing" in n for n in found.notes)


def test_a_module_of_the_users_stays_in_its_mode():
    module, inputs, _ = decoder(0.1)()
    module.inner.eval()
    found = mfu(module, "h100", rate="1step/s", inputs=inputs, input="x: f32[B, T, D]", phase="forward")
    assert found.flops("causal") < found.flops("full")
    assert (module.training, module.inner.training) == (True, False)


def test_experts_that_a_token_is_not_sent_to_are_no_parameters_of_6n():
    """Mixtral 8x7B: 2 of 8 experts a token, three products each; published as 46.7 and 12.9 billion parameters."""
    found = mfu(MIXTRAL, "b200", rate="8ktok/s", phase="forward")
    expert = 3 * 4096 * 14336
    assert found.params - found.active == 32 * 6 * expert
    assert (round(found.params, -8), round(found.active, -8)) == (46_700_000_000, 12_900_000_000)
    assert found.flops("parameters") == 2 * found.active * 2048
    assert "2 x 12.88 G parameters, those at work of 46.7 G" in render.render(mfu_view.utilisation(found))


def test_the_peak_is_that_of_the_type_with_most_flops():
    def build(B=4, D=64):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.wide, self.narrow = nn.Linear(D, 7 * D).bfloat16(), nn.Linear(D, D)

            def forward(self, x):
                return self.wide(x.bfloat16()).float().sum() + self.narrow(x).sum()

        return Mixed(), (torch.zeros(B, D),), {}

    found = mfu(build, "h100", time="1us", phase="forward")
    assert (found.peaks[0].key, found.peaks[0].rate) == ("matrix.bf16", H100)
    assert "12.50% of the matmul FLOPs are in fp32; the peak is that of bf16 for all" in found.notes


# ------------------------------------------------------------------------------------------------------------------- laws


SIZES = st.fixed_dictionaries({n: st.integers(1, 4096) for n in "BDF"})


@settings(deadline=None, max_examples=25)
@given(sizes=SIZES, steps=st.integers(1, 10**6), devices=st.integers(1, 4096))
def test_rates_and_times_agree(sizes, steps, devices):
    """The same run said in four ways; and by hand, 2*B*D*F per step."""
    B = sizes["B"]
    ways = [{"rate": f"{steps}step/s"}, {"rate": f"{steps * B}seq/s"}, {"rate": f"{steps * B * 60} tok/min"}]
    found = [mfu(MATMUL, "h100", sizes=sizes, tokens="B", devices=devices, **w) for w in ways]
    by_hand = Fraction(2 * B * sizes["D"] * sizes["F"] * steps, devices) / H100
    assert {f.full for f in found} == {f.causal for f in found} == {f.hardware for f in found} == {by_hand}
    assert {f.by_parameters for f in found} == {by_hand}  # every weight multiplies once per row


@pytest.mark.parametrize(
    ("time", "steps"), [("250ms", 4), ("40us", 25_000), ("2min", Fraction(1, 120)), ("1.25 s/step", "4/5")]
)
def test_a_time_is_one_over_a_rate(time, steps):
    assert mfu(MATMUL, "h100", time=time).steps == Fraction(steps)


def test_laws_of_chips_and_devices():
    base = mfu(MATMUL, "h100", rate="100step/s")
    assert mfu(MATMUL, "h100", rate="800step/s", devices=8).full == base.full
    assert mfu(MATMUL, "h100", rate="100step/s", devices=8).full == base.full / 8
    half = load_chip("h100", {"matrix.bf16": "494.7e12"})
    assert mfu(MATMUL, half, rate="100step/s").full == 2 * base.full
    both = mfu(MATMUL, ["h100", half], rate="100step/s")
    assert [both.share("full", i) for i in (0, 1)] == [base.full, 2 * base.full]
    assert [p.by_hand for p in both.peaks] == [False, True]


def test_tokens_per_second_do_not_need_the_batch():
    shares = {b: mfu(decoder(0.0), "h100", rate="100tok/s", sizes={"B": b}) for b in (2, 3, 8)}
    assert len({(m.full, m.causal, m.by_parameters, m.hardware) for m in shares.values()}) == 1


def test_numbers_for_sizes_change_no_number():
    whole = costir.analyze(decoder(0.0), phase="train")
    kept = [mfu(a, "h100", rate="100tok/s") for a in (whole, whole.keep(["T"]), whole.keep([]))]
    assert len({(m.full, m.causal, m.by_parameters, m.hardware, m.tokens) for m in kept}) == 1
    assert [{str(s) for s in m.counted[0].expr.free_symbols} for m in kept] == [{"B", "T", "D"}, {"T"}, set()]
    assert [dict(m.fixed) for m in kept] == [{}, {"B": 2, "D": 16}, {"B": 2, "T": 32, "D": 16}]


def test_an_analysis_brings_its_conditions():
    analysis = costir.analyze(perceptron, phase="backward", dtype="bf16")
    found = mfu(analysis, "h100", time="10ms", tokens="B")
    assert (found.phase, found.assumed, found.peaks[0].dtype) == ("backward", False, "bf16")
    with pytest.raises(CostirError, match="has its phase already"):
        mfu(analysis, "h100", time="10ms", phase="train")


@pytest.mark.parametrize(
    ("subject", "phase"),
    [
        (MATMUL, "forward"),
        ("program.pt2", "forward"),
        ("model.py:GPT", "train"),
        ("config.json", "train"),
        (perceptron, "train"),
    ],
)
def test_what_is_assumed_to_run(subject, phase):
    assert assumed_phase(subject) == phase


# ---------------------------------------------------------------------------------------------------------- above 100 %


def at_share(convention, share, build):
    """The run of a model at this utilisation by a convention."""
    once = mfu(build, "h100", rate="1step/s")
    return mfu(build, "h100", rate=f"{float(share / once.share(convention))!r}step/s")


def test_more_than_a_chip_can_do_gets_a_sentence():
    (said,) = at_share("causal", Fraction(101, 100), decoder(0.0)).warnings
    assert said.startswith("no run on h100_sxm passes its dense fp32 peak")
    for option in ("--devices", "--dtype", "--phase", "--size"):
        assert option in said


def test_a_loose_convention_may_pass_100_percent():
    run = at_share("causal", Fraction(99, 100), decoder(0.0))
    assert run.full > 1
    (said,) = run.warnings
    assert "scores that a causal kernel skips" in said
    assert "no run" not in said
    assert at_share("hardware", Fraction(99, 100), decoder(0.0)).warnings == ()
    (said,) = at_share("full", Fraction(11, 10), perceptron).warnings
    assert "gradients that this step does not compute" in said


def test_above_100_percent_is_no_error(capsys):
    code, out, err = run(capsys, "mfu", MATMUL, "--chip", "h100", "--time", "1us", "--size", "B=4096")
    assert (code, err) == (0, "")
    assert "above 100 %" in out
    assert "no run on h100_sxm" in out


def test_what_is_unknown_makes_lower_bounds():
    @torch.library.custom_op("testmfu::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    odd.register_fake(lambda x: torch.empty_like(x))

    class Odd(nn.Module):
        def __init__(self, D):
            super().__init__()
            self.inner = nn.Linear(D, D)

        def forward(self, x):
            return odd(self.inner(x))

    found = mfu(lambda B=2, T=3, D=8: (Odd(D), (torch.zeros(B, T, D),), {}), "h100", rate="1Mtok/s", phase="forward")
    text = render.render(mfu_view.utilisation(found))
    assert "testmfu::odd" in found.unknown[0]
    full, _, by_parameters = [line for line in text.splitlines() if line.startswith("MFU,")]
    assert full.count(">= ") == 3
    assert ">=" not in by_parameters

"""Bytes under --traffic inductor against TorchInductor's own scheduler; benchmarks/fusion.py prints the whole table."""

from __future__ import annotations

import pytest
from oracle_compare import both

EQUAL = [
    ("softmax", 64),
    ("conv_bn_relu", 32),
    ("conv_bn_relu_eval", 48),
    ("halves_in_place", 48),
    ("layer_norm", 48),
    ("rms_norm", 64),
    ("swiglu_mlp", 32),
    ("attention_fused", 48),
    ("cross_entropy", 32),
    ("residual_stream", 32),
    ("attention_written_out", 48),
    ("attention_masked", 32),
    ("llama_block", 32),
    ("gpt", 32),
    ("gpt2", 48),
    ("llama", 48),
    ("bert", 48),
    ("cnn", 16),
    ("resnet", 16),
]


def ratio(name, width, phase):
    ours, theirs = (sum(k.nbytes for k in found) for found in both(name, width, phase))
    return ours / theirs


@pytest.mark.parametrize(("name", "width"), EQUAL)
def test_bytes_are_inductors(name, width):
    """Forward and backward, within 1 %."""
    assert abs(ratio(name, width, "backward") - 1) < 0.01


def test_bytes_of_a_norm_by_groups_are_inductors():
    """Without a gradient; with one TorchInductor stores what is computed again here (docs/traffic.md)."""
    assert abs(ratio("conv_group_norm_silu", 16, "forward") - 1) < 0.01
    assert 0.92 < ratio("conv_group_norm_silu", 16, "backward") < 1.01


@pytest.mark.parametrize("name", ["adamw", "adamw_foreach", "adam_amsgrad"])
def test_bytes_of_a_step_are_inductors(name):
    """Each state is read and written once."""
    assert abs(ratio(name, 32, "optimizer") - 1) < 0.001

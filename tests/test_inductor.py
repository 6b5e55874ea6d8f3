"""Bytes under --traffic inductor against TorchInductor's own scheduler; benchmarks/fusion.py prints the whole table."""

from __future__ import annotations

import pytest
from fusion_cases import CASES
from oracle_inductor import kernels_of

from costir import trace
from costir.fusion.kernels import fuse
from costir.load.family import Family


def ours(module, args, phase):
    """The bytes of the kernels found here."""
    t = trace.run(Family("case", lambda: (module, args, {}), {}), {}, phase)
    return sum(k.nbytes for k in fuse(t, "inductor").kernels)


CHOSEN = [
    ("softmax", 64),
    ("conv_bn_relu", 32),
    ("conv_bn_relu_eval", 48),
    ("layer_norm", 48),
    ("rms_norm", 64),
    ("swiglu_mlp", 32),
    ("attention_fused", 48),
    ("cross_entropy", 32),
    ("residual_stream", 32),
    ("attention_written_out", 48),
]


@pytest.mark.parametrize(("name", "width"), CHOSEN)
def test_bytes_are_inductors(name, width):
    """Forward and backward, within 1 %."""
    module, args = CASES[name](width)
    theirs = sum(k.nbytes for k in kernels_of(module, args, backward=True))
    module, args = CASES[name](width)
    assert abs(ours(module, args, "backward") / theirs - 1) < 0.01

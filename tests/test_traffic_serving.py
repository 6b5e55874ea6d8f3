"""The least bytes of a step of serving, counted from the model's config: weights and cache read once, what is new written."""

import json
from math import prod

import pytest
from serving_models import TINY

from costir.cost import cost_of
from costir.fused import fused_trace
from costir.load import load_subject
from costir.trace import concrete, run

pytest.importorskip("transformers")

BATCH, ROW = 2, 4 * 2 * 2 * 8  # bytes of keys and values per sequence, token and layer: fp32, 2 kinds, 2 heads of 8
LAYERS, WINDOW = 2, 12


def step(tmp_path, name, phase, length, kind):
    (tmp_path / "config.json").write_text(json.dumps(TINY[name]))
    family = load_subject(str(tmp_path), phase=phase, cache=kind)
    return run(family, {**family.sizes, "B": BATCH, "S" if phase == "decode" else "T": length})


def moved(trace, kind):
    costs = [cost_of(concrete(e))[0] for e in fused_trace(trace, kind).events]
    return float(sum(c.read for c in costs)), float(sum(c.write for c in costs))


@pytest.mark.parametrize(
    ("name", "phase", "length", "kind", "cached", "new"),
    [
        ("llama", "decode", 9, "dynamic", 8, 1),
        ("llama", "decode", 9, "static", 9, 1),  # a buffer with room for the new row is read whole
        ("llama", "prefill", 9, "dynamic", 0, 9),
        ("mistral", "decode", 20, "dynamic", WINDOW - 1, 1),
        ("mistral", "decode", 20, "static", WINDOW, 1),  # rolled, one row put in, and copied back
        ("mistral", "prefill", 20, "dynamic", 0, WINDOW - 1),  # of the prompt the window is left
    ],
)
def test_the_ideal_of_a_step(tmp_path, name, phase, length, kind, cached, new):
    t = step(tmp_path, name, phase, length, kind)
    read, written = moved(t, "ideal")
    rows = BATCH * LAYERS * ROW
    (logits,) = t.outputs
    assert written == 4 * prod(logits.shape) + new * rows
    vocabulary, width = TINY[name]["vocab_size"], TINY[name]["hidden_size"]
    tokens = BATCH * (1 if phase == "decode" else length)
    weights = sum(4 * prod(w.tensor.shape) for w in t.weights if w.tensor.role == "weight") - 4 * vocabulary * width
    # beside: the rows of the embedding, the tokens, frequencies of the positions, places in the cache
    assert 0 <= read - weights - 4 * tokens * width - cached * rows - 8 * tokens <= 64
    for traffic in ("inductor", "xla"):
        assert read + written <= sum(moved(t, traffic)) <= sum(moved(t, "eager"))

"""Recurrent layers against cells written out on numbers that count, torch's decompositions, and its flop counter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    Case,
    T,
    accumulate,
    add_up,
    arr,
    cost_of,
    dot,
    made,
    schema_of,
    sums,
    verify,
    verify_symbols,
    without_sample,
)
from torch.utils.flop_counter import FlopCounterMode

from costir.symbolic import equal, size
from costir.trace import record_calls

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
MODES = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}


def lstm_unit(pre, c):
    i, f, g, o = (p.f() for p in pre)
    c = f * c + i * g
    return o * c.f()


def gru_unit(inner, hidden, h):
    """torch: r and z from the sums, n = tanh(x + r*hidden), h' = n + z*(h - n)."""
    r, z = ((x + y).f() for x, y in zip(inner[:2], hidden[:2], strict=True))
    n = (inner[2] + r * hidden[2]).f()
    return n + z * (h - n)


def step(t, kind, inner, hidden, h, c):
    """A unit from its gates' two products (biases already added)."""
    if kind == "gru":
        return gru_unit(inner, hidden, h)
    pre = [x + y for x, y in zip(inner, hidden, strict=True)]
    if kind == "lstm":
        return lstm_unit(pre, c)
    return pre[0].f() if kind == "tanh" else pre[0]


def layer(t, kind, tokens, I, H, P=0, biases=True):
    """One layer and direction, token by token."""
    R = P or H
    for _ in range(tokens):
        x, h, c, out = arr(t, I), arr(t, R), arr(t, H), []
        for unit in range(H):
            inner = [dot(t, x, arr(t, I)) for _ in range(GATES[kind])]
            hidden = [dot(t, h, arr(t, R)) for _ in range(GATES[kind])]
            if biases:
                inner, hidden = [v + arr(t) for v in inner], [v + arr(t) for v in hidden]
            out.append(step(t, kind, inner, hidden, h[unit % R], c[unit]))
        for _ in range(P):
            dot(t, out, arr(t, H))


def forward(t, kind, B, L, I, H, P=0, layers=1, directions=1, biases=True):
    for depth in range(layers):
        for _ in range(directions):
            layer(t, kind, B * L, I if depth == 0 else directions * (P or H), H, P, biases)


def unit_gradients(t, kind, grad, grad_c, has_cell=True):
    """Gradients of the gates of one unit; all inputs are saved values."""
    i, f, g, o, c, cy, r, z, n, h = (arr(t) for _ in range(10))
    if kind == "lstm":
        tc = cy.f() if grad is not None else None
        dc = grad_c
        if grad is not None:
            do = grad * tc
            through = grad * o * (1 - tc * tc)
            dc = through if grad_c is None else through + grad_c
            do = do * (1 - o) * o
        di, df, dg, _ = dc * g, dc * c, dc * i, dc * f
        return [di * (1 - i) * i, df * (1 - f) * f, dg * (1 - g * g)]
    if kind == "gru":
        dn, dz, _ = grad * (1 - z), grad * (h - n), grad * z
        dn = dn * (1 - n * n)
        dr, _ = dn * h, dn * r
        return [dr * (1 - r) * r, dz * (1 - z) * z, dn]
    return [grad * (1 - h * h)] if kind == "tanh" else [grad]


def backward(t, kind, B, L, I, H, biases=True):
    """One layer and direction backwards: gates, inputs, states, weights, biases."""
    G, dw, du = GATES[kind] * H, {}, {}
    for _ in range(B * L):
        for _ in range(H):
            grad = arr(t) + arr(t)  # from above, and from the next step
            unit_gradients(t, kind, grad, arr(t))
        gates, x, h = arr(t, G), arr(t, I), arr(t, H)
        for _ in range(I):
            dot(t, gates, arr(t, G))
        for _ in range(H):
            dot(t, gates, arr(t, G))
        with t.contraction():
            for g in range(G):
                for i in range(I):
                    accumulate(dw, (g, i), gates[g] * x[i])
                for j in range(H):
                    accumulate(du, (g, j), gates[g] * h[j])
    for _ in range((2 if kind == "gru" else 1) * G * biases):
        add_up(arr(t, B * L))


def params(kind, I, H, P=0, layers=1, directions=1, biases=True):
    G, R, flat = GATES[kind] * H, P or H, []
    for depth in range(layers):
        for _ in range(directions):
            flat += [T(G, I if depth == 0 else directions * R), T(G, R)] + [T(G)] * (2 * biases) + ([T(P, H)] if P else [])
    return tuple(flat)


def stacked(kind, layers=1, directions=1, biases=True, projected=False, packed=False):
    op = f"aten.{kind if kind in ('lstm', 'gru') else f'rnn_{kind}'}.{'data' if packed else 'input'}"

    def build(B, L, I, H, P=0):
        R, n = P or H, layers * directions
        h, c = T(n, B, R), T(n, B, H)
        hx = (h, c) if kind == "lstm" else h
        x = {"data": T(B * L, I), "batch_sizes": T(L, dtype="int64")} if packed else {"input": T(L, B, I), "batch_first": False}
        y = T(B * L, directions * R) if packed else T(L, B, directions * R)
        return made(
            op,
            (y, h, c) if kind == "lstm" else (y, h),
            **x,
            hx=hx,
            params=params(kind, I, H, P, layers, directions, biases),
            has_biases=biases,
            num_layers=layers,
            dropout=0.0,
            train=False,
            bidirectional=directions == 2,
        )

    sizes = tuple({**s, "P": p} for s, p in zip(SIZES, (2, 1), strict=True)) if projected else SIZES
    return Case(op, build, lambda t, **s: forward(t, kind, **s, layers=layers, directions=directions, biases=biases), sizes)


def mkldnn(kind="lstm", biases=True):
    def build(B, L, I, H):
        G = GATES[kind] * H
        weights = dict(zip(("weight0", "weight1", "weight2", "weight3"), (T(G, I), T(G, H), T(G), T(G)), strict=True))
        return made(
            "aten.mkldnn_rnn_layer",
            (T(L, B, H), T(B, H), T(B, H), T(1000, dtype="uint8")),
            input=T(L, B, I),
            **weights,
            hx_=T(B, H),
            cx_=T(B, H),
            reverse=False,
            batch_sizes=(),
            mode=MODES[kind],
            hidden_size=H,
            num_layers=2,
            has_biases=biases,
            bidirectional=True,
            batch_first=True,
            train=True,
        )

    unread = () if biases else ("weight2", "weight3")
    return Case("aten.mkldnn_rnn_layer", build, lambda t, **s: forward(t, kind, **s, biases=biases), SIZES, unread, 3)


def mkldnn_backward(B, L, I, H):
    weights = dict(
        zip(("weight1", "weight2", "weight3", "weight4"), (T(4 * H, I), T(4 * H, H), T(4 * H), T(4 * H)), strict=True)
    )
    state, y = T(B, H), T(L, B, H)
    return made(
        "aten.mkldnn_rnn_layer_backward",
        (T(L, B, I), *weights.values(), state, state),
        input=T(L, B, I),
        **weights,
        hx_=state,
        cx_tmp=state,
        output=y,
        hy_=state,
        cy_=state,
        grad_output=y,
        grad_hy=None,
        grad_cy=None,
        reverse=False,
        mode=2,
        hidden_size=H,
        num_layers=1,
        has_biases=True,
        train=True,
        bidirectional=False,
        batch_sizes=(),
        batch_first=False,
        workspace=T(999, dtype="uint8"),
    )


def vendor(op, kind, layers=2, directions=2):
    def build(B, L, I, H):
        n = layers * directions
        state, y = T(n, B, H), T(L, B, directions * H)
        weight = params(kind, I, H, 0, layers, directions)
        known = {
            "weight_stride0": 4,
            "mode": MODES[kind],
            "hidden_size": H,
            "proj_size": 0,
            "num_layers": layers,
            "batch_first": False,
            "dropout": 0.0,
            "train": True,
            "bidirectional": directions == 2,
            "batch_sizes": (),
            "weight_buf": T(77),
        }
        outputs = (y, state, state, T(55, dtype="uint8"), T(77))
        if "backward" in op:
            known |= {
                "weight_buf": T(77),
                "output": y,
                "grad_output": y,
                "reserve": T(55, dtype="uint8"),
                "output_mask": (True,) * 4,
            }
            outputs = (T(L, B, I), state, state, *weight)
        names = {a.name for a in schema_of(op).arguments}
        return made(
            op, outputs, input=T(L, B, I), weight=weight, hx=state, cx=state, **{k: v for k, v in known.items() if k in names}
        )

    if "backward" in op:
        return Case(op, build, lambda t, **s: backward(t, kind, **s), SIZES, ("weight_buf", "reserve"))
    return Case(
        op, build, lambda t, **s: forward(t, kind, **s, layers=layers, directions=directions), SIZES, ("weight_buf",), 3
    )


def mps(op):
    def build(B, L, I, H):
        state, y, weight = T(1, B, H), T(L, B, H), params("lstm", I, H)
        known = {
            "input": T(L, B, I),
            "hx": (state, state),
            "params": weight,
            "has_biases": True,
            "num_layers": 1,
            "dropout": 0.0,
            "train": True,
            "bidirectional": False,
            "batch_first": False,
        }
        if "backward" in op:
            saved = {"grad_y": y, "z_state": T(9), "cell_state_fwd": T(9), "layersOutputs": T(9)}
            return made(op, (T(L, B, I), state, state, *weight), **known, **saved)
        return made(op, (y, state, state, T(9), T(9), T(9)), **known)

    if "backward" in op:
        return Case(op, build, lambda t, **s: backward(t, "lstm", **s), SIZES, ("z_state", "cell_state_fwd", "layersOutputs"))
    return Case(op, build, lambda t, **s: forward(t, "lstm", **s), SIZES, (), 3)


def cell(kind, biases=True):
    op = f"aten.{kind if kind in ('lstm', 'gru') else f'rnn_{kind}'}_cell"

    def build(B, I, H):
        G, state = GATES[kind] * H, T(B, H)
        extra = {"b_ih": T(G), "b_hh": T(G)} if biases else {}
        hx, outs = ((state, state), (state, state)) if kind == "lstm" else (state, state)
        return made(op, outs, input=T(B, I), hx=hx, w_ih=T(G, I), w_hh=T(G, H), **extra)

    return Case(op, build, lambda t, B, I, H: forward(t, kind, B, 1, I, H, biases=biases), CELLS)


def fused(kind, biases=True):
    op = f"aten._thnn_fused_{kind}_cell"

    def build(B, H):
        G, state = GATES[kind] * H, T(B, H)
        extra = {"input_bias": T(G), "hidden_bias": T(G)} if biases else {}
        name = "cx" if kind == "lstm" else "hx"
        outs = (state, state, T(B, G)) if kind == "lstm" else (state, T(B, 5 * H))
        return made(op, outs, input_gates=T(B, G), hidden_gates=T(B, G), **{name: state}, **extra)

    def reference(t, B, H):
        for _ in range(B * H):
            inner, hidden = arr(t, GATES[kind]), arr(t, GATES[kind])
            if biases:
                inner, hidden = [v + arr(t) for v in inner], [v + arr(t) for v in hidden]
            step(t, kind, inner, hidden, arr(t), arr(t))

    return Case(op, build, reference, FUSED)


def fused_backward(op, kind, missing=""):
    def build(B, H):
        G, state = GATES[kind] * H, T(B, H)
        known = {"grad_hy": state, "grad_cy": state, "cx": state, "cy": state, "workspace": T(B, G), "has_bias": True}
        known = {k: None if k == missing else v for k, v in known.items() if kind == "lstm" or k not in ("grad_cy", "cx", "cy")}
        return made(op, (T(B, G), state, T(G)), **known)

    def reference(t, B, H):
        for _ in range(B * H):
            unit_gradients(t, kind, None if missing == "grad_hy" else arr(t), None if missing == "grad_cy" else arr(t))
        sums_ = 0 if op.endswith("_impl") else 2 if kind == "gru" else 1
        for _ in range(sums_ * GATES[kind] * H):
            add_up(arr(t, B))

    return Case(op, build, reference, FUSED)


SIZES = ({"B": 2, "L": 3, "I": 4, "H": 2}, {"B": 1, "L": 2, "I": 1, "H": 3})
CELLS = ({"B": 2, "I": 4, "H": 3}, {"B": 3, "I": 1, "H": 2})
FUSED = ({"B": 2, "H": 3}, {"B": 4, "H": 1})
BACK = "aten._thnn_fused_lstm_cell_backward"
CASES = [
    *(stacked(kind) for kind in GATES),
    *(stacked(kind, layers=2, directions=2, biases=False) for kind in GATES),
    *(stacked(kind, packed=True) for kind in ("lstm", "gru")),
    stacked("lstm", layers=2, directions=2, projected=True),
    *(mkldnn(kind) for kind in GATES),
    mkldnn(biases=False),
    Case("aten.mkldnn_rnn_layer_backward", mkldnn_backward, lambda t, **s: backward(t, "lstm", **s), SIZES, ("workspace",)),
    *(vendor(op, kind) for op in ("aten._cudnn_rnn", "aten.miopen_rnn") for kind in ("lstm", "gru")),
    *(vendor(f"{op}_backward", kind, 1, 1) for op in ("aten._cudnn_rnn", "aten.miopen_rnn") for kind in GATES),
    mps("aten._lstm_mps"),
    mps("aten.lstm_mps_backward"),
    *(cell(kind) for kind in GATES),
    *(cell(kind, biases=False) for kind in GATES),
    *(fused(kind, biases) for kind in ("lstm", "gru") for biases in (True, False)),
    *(fused_backward(BACK, "lstm", missing) for missing in ("", "grad_cy", "grad_hy")),
    fused_backward(f"{BACK}_impl", "lstm"),
    fused_backward("aten._thnn_fused_gru_cell_backward", "gru"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_counts(case):
    for sizes in case.sizes:
        verify(case, sizes)
    verify_symbols(case)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([mkldnn(), mkldnn("gru"), stacked("lstm", 2, 2), stacked("gru"), CASES[-1]]), st.data())
def test_counts_at_drawn_sizes(case, data):
    verify(case, {k: data.draw(st.integers(1, 4), label=k) for k in case.sizes[0]})


def test_every_rule_has_a_sample():
    missing = without_sample("costir.ops.rnn", CASES)
    assert {op for op in missing if not any(c.op.startswith(f"{op}.") for c in CASES)} == set()


# Against torch.


@pytest.mark.parametrize("backward_too", [False, True])
@pytest.mark.parametrize(("layers", "both"), [(1, False), (2, True)])
def test_lstm_on_cpu_agrees_with_the_counter_on_meta(layers, both, backward_too):
    """On CPU an LSTM layer is one operator; on meta torch writes it out and counts its products."""
    layer_ = torch.nn.LSTM(5, 4, layers, bidirectional=both)
    shapes = (3, 2, 5), *[(layers * (1 + both), 2, 4)] * 2  # the states need gradients too: the CPU operator always gives them
    x, h, c = (torch.randn(s, requires_grad=True) for s in shapes)
    calls = [c for c in record_calls(layer_, x, (h, c), backward=backward_too) if "rnn_layer" in c.name]
    assert len(calls) == layers * (1 + both) * (1 + backward_too)
    with FlopCounterMode(display=False) as counter:
        x, h, c = (torch.empty(s, device="meta", requires_grad=True) for s in shapes)
        out = layer_.to("meta")(x, (h, c))[0]
        if backward_too:
            out.sum().backward()
    assert sums(calls)["matmul"] == counter.get_total_flops()


@pytest.mark.parametrize("kind", ["gru", "tanh", "relu"])
def test_layers_cost_what_torch_runs(kind):
    """On CPU these are written out: products, adds and activations of every step."""
    module = (
        torch.nn.GRU(5, 4, 2, bidirectional=True)
        if kind == "gru"
        else torch.nn.RNN(5, 4, 2, nonlinearity=kind, bidirectional=True)
    )
    ran = sums([c for c in record_calls(module, torch.randn(3, 2, 5)) if "rnn_layer" not in c.name])
    call = stacked(kind, 2, 2).build(B=2, L=3, I=5, H=4)
    assert sums([call]) == ran


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_cells_cost_what_torch_runs(kind):
    module = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell, "tanh": torch.nn.RNNCell}[kind](5, 4)
    assert sums([cell(kind).build(B=2, I=5, H=4)]) == sums(record_calls(module, torch.randn(2, 5)))


def test_work_grows_with_length_and_with_all_widths():
    B, L, I, H = (size(n) for n in "BLIH")
    cost = cost_of(mkldnn().build(B, L, I, H))
    assert equal(cost.matmul, 8 * B * L * H * (I + H))
    two = cost_of(stacked("lstm", 2, 2).build(B, L, I, H))
    assert equal(two.matmul, 16 * B * L * H * (I + H) + 16 * B * L * H * 3 * H)
    assert "inner layers" in two.note

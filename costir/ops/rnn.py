"""Recurrent layers and cells.

Per token (one step of one sequence), layer and direction, with G gates (LSTM 4, GRU 3, plain 1), input width I, hidden width
H and state width R (H, or the projection's P): products 2*G*H*(I + R), and 2*H*P for an LSTM's projection. Weights are read
once for the whole layer, whatever the number of steps.

Vector and special FLOPs per hidden unit:
- LSTM: add the two products 4, biases 8, c = f*c + i*g 3, h = o*tanh(c) 1; three sigmoids and two tanh;
- GRU: r*(...) 1, add the two products 3, biases 6, h = n + z*(h - n) 3; two sigmoids and one tanh;
- plain: add the two products 1, biases 2; one tanh (ReLU is a comparison).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from costir.ir import Call, Conventions, Cost, Tensor, tensors
from costir.ops.contract import mac_flops, math_type, operands
from costir.ops.registry import ZERO, product, read_once, rule, total, written
from costir.symbolic import Expr


@dataclass(frozen=True)
class Cell:
    """FLOPs per hidden unit of one step.

    Attributes:
        gates: how many products with the input, and with the state.
        vector, special: elementwise work forward, biases aside.
        back_vector, back_special: elementwise work backward, from the saved gates.
    """

    gates: int
    vector: int
    special: int
    back_vector: int
    back_special: int


# Backward of an LSTM unit: do 1, dc 5, di df dg dc' 4, through the activations 12, tanh(c) again. Of a GRU unit: dn dz dh 5,
# through the activations 9, dr and the gradient of the gated product 2. Of a plain unit: through tanh 3.
CELLS = {
    "lstm": Cell(4, 8, 5, 22, 1),
    "gru": Cell(3, 7, 3, 16, 0),
    "tanh": Cell(1, 1, 1, 3, 0),
    "relu": Cell(1, 1, 0, 0, 0),
}
MODES = ("relu", "tanh", "lstm", "gru")  # the numbers that cuDNN and mkldnn give them

COUNTS = (
    "2*G*H*(I + R) per token, layer and direction; per hidden unit: LSTM 16 vector and 5 special, GRU 13 and 3, plain 3 and 1"
)
BACK_COUNTS = (
    "twice the forward products (gradients of inputs and of weights); per hidden unit: LSTM 23 vector and 1 special, GRU 17, "
    "tanh 4, ReLU 1; bias gradients an add per token and gate (one less per sum)"
)


@dataclass(frozen=True)
class Direction:
    """The parameters of one layer and direction: w_ih [G*H, I], w_hh [G*H, R], maybe a projection [P, H]; biases or not."""

    matrices: tuple[Tensor, ...]
    biased: bool

    def hidden(self, cell: Cell) -> Expr:
        """The hidden width H."""
        return self.matrices[0].shape[0] / cell.gates


def directions(params: Sequence[Tensor], each: int) -> list[Direction]:
    """Splits a flat list of parameters, `each` per layer and direction: matrices are 2-D, biases 1-D."""
    groups = [params[i : i + each] for i in range(0, len(params), each)]
    return [Direction(tuple(t for t in g if len(t.shape) == 2), any(len(t.shape) == 1 for t in g)) for g in groups]


def _cell(call: Call) -> Cell:
    """Which cell the operator runs: by its mode, or by its name."""
    if "mode" in call.args:
        return CELLS[MODES[int(call.args["mode"])]]
    return next(cell for word, cell in CELLS.items() if word in call.name)


def _params(call: Call) -> list[Direction]:
    """The parameters by layer and direction."""
    if "weight0" in call.args or "weight4" in call.args:
        names = (
            ("weight0", "weight1", "weight2", "weight3")
            if "weight0" in call.args
            else ("weight1", "weight2", "weight3", "weight4")
        )
        found = directions([call.args[n] for n in names], 4)
        return [replace(found[0], biased=bool(call.args["has_biases"]))]
    if "weight_stride0" in call.args:
        return directions(call.args["weight"], int(call.args["weight_stride0"]))
    params = call.args["params"]
    layers = int(call.args["num_layers"]) * (2 if call.args["bidirectional"] else 1)
    return directions(params, len(params) // layers)


def _forward(cell: Cell, layers: Sequence[Direction], tokens: Expr, conventions: Conventions) -> tuple[Expr, Expr, Expr]:
    """(matmul, vector, special) for `tokens` steps times sequences."""
    matmul, vector, special = [], [], []
    for layer in layers:
        hidden = layer.hidden(cell)
        macs, dots = tokens * total(w.numel for w in layer.matrices), tokens * total(w.shape[0] for w in layer.matrices)
        matmul.append(mac_flops(macs, dots, conventions))
        vector.append(tokens * hidden * (cell.vector + (2 * cell.gates if layer.biased else 0)))
        special.append(tokens * hidden * cell.special)
    return total(matmul), total(vector), total(special)


def _backward(cell: Cell, layers: Sequence[Direction], tokens: Expr, conventions: Conventions) -> tuple[Expr, Expr, Expr]:
    """(matmul, vector, special) of all gradients; one add per unit joins the two gradients that reach a state."""
    matmul, vector, special = [], [], []
    for layer in layers:
        hidden, weights = layer.hidden(cell), total(w.numel for w in layer.matrices)
        dots = tokens * total(w.shape[1] for w in layer.matrices) + weights
        matmul.append(mac_flops(2 * tokens * weights, dots, conventions))
        biases = (2 if cell.gates == 3 else 1) * cell.gates * (tokens - 1) if layer.biased else ZERO
        vector.append(hidden * (tokens * (cell.back_vector + 1) + biases))
        special.append(tokens * hidden * cell.back_special)
    return total(matmul), total(vector), total(special)


def _tokens(call: Call) -> Expr:
    """Steps times sequences; packed sequences [tokens, I] have all of them in their first dimension."""
    x = call.args["input"] if "input" in call.args else call.args["data"]
    return product(x.shape[:-1])


def _layer(call: Call, work: tuple[Expr, Expr, Expr], unread: Sequence[str], outputs: Sequence[Tensor], note: str = "") -> Cost:
    x = call.args["input"] if "input" in call.args else call.args["data"]
    math = math_type(call, [x, *(w for d in _params(call) for w in d.matrices)])
    return Cost(*work, read_once(operands(call, *unread)), written(outputs), math, note=note)


SAVED = "what is saved for the backward pass is not counted"


@rule("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu", kind="recurrent", counts=COUNTS)
def layers(call: Call, conventions: Conventions) -> Cost:
    """All layers and directions: input [T, B, I] (or [B, T, I]), or packed `data` [tokens, I]; params as nn.LSTM has them."""
    work = _forward(_cell(call), _params(call), _tokens(call), conventions)
    return _layer(
        call, work, (), call.outputs, "outputs of inner layers are not counted" if call.args["num_layers"] != 1 else ""
    )


@rule("aten.mkldnn_rnn_layer", kind="recurrent", counts=COUNTS)
def mkldnn_rnn_layer(call: Call, conventions: Conventions) -> Cost:
    """One layer and direction: input [T, B, I], weights [G*H, I] and [G*H, H], two biases [G*H].

    `num_layers` and `bidirectional` describe the module that it belongs to; each layer and direction is a call of its own.
    """
    work = _forward(_cell(call), _params(call), _tokens(call), conventions)
    unread = () if call.args["has_biases"] else ("weight2", "weight3")
    return _layer(call, work, unread, call.outputs[:3], SAVED if call.args["train"] else "")


@rule("aten.mkldnn_rnn_layer_backward", kind="recurrent", counts=BACK_COUNTS)
def mkldnn_rnn_layer_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradients of one layer and direction."""
    work = _backward(_cell(call), _params(call), _tokens(call), conventions)
    unread = ("workspace",) if call.args["has_biases"] else ("workspace", "weight3", "weight4")
    return _layer(call, work, unread, call.outputs, SAVED)


@rule("aten._cudnn_rnn", "aten.miopen_rnn", kind="recurrent", counts=COUNTS)
def cudnn_rnn(call: Call, conventions: Conventions) -> Cost:
    """All layers and directions; `weight_buf` is the same memory as `weight`."""
    work = _forward(_cell(call), _params(call), _tokens(call), conventions)
    return _layer(call, work, ("weight_buf", "dropout_state"), call.outputs[:3], SAVED if call.args["train"] else "")


@rule("aten._cudnn_rnn_backward", "aten.miopen_rnn_backward", kind="recurrent", counts=BACK_COUNTS)
def cudnn_rnn_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradients of input, states and weights for all layers and directions."""
    work = _backward(_cell(call), _params(call), _tokens(call), conventions)
    return _layer(call, work, ("weight_buf", "dropout_state", "reserve"), call.outputs, SAVED)


@rule("aten._lstm_mps", kind="recurrent", counts=COUNTS)
def lstm_mps(call: Call, conventions: Conventions) -> Cost:
    """All layers and directions of an LSTM."""
    work = _forward(CELLS["lstm"], _params(call), _tokens(call), conventions)
    return _layer(call, work, (), call.outputs[:3], SAVED if call.args["train"] else "")


@rule("aten.lstm_mps_backward", kind="recurrent", counts=BACK_COUNTS)
def lstm_mps_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradients of all layers and directions of an LSTM."""
    work = _backward(CELLS["lstm"], _params(call), _tokens(call), conventions)
    return _layer(call, work, ("z_state", "cell_state_fwd", "layersOutputs"), call.outputs, SAVED)


@rule("aten.lstm_cell", "aten.gru_cell", "aten.rnn_tanh_cell", "aten.rnn_relu_cell", kind="recurrent", counts=COUNTS)
def cells(call: Call, conventions: Conventions) -> Cost:
    """One step: input [B, I], state [B, H], w_ih [G*H, I], w_hh [G*H, H], two biases or none."""
    x, w_ih, w_hh = (call.args[n] for n in ("input", "w_ih", "w_hh"))
    layer = Direction((w_ih, w_hh), isinstance(call.args["b_ih"], Tensor))
    work = _forward(_cell(call), [layer], product(x.shape[:-1]), conventions)
    return Cost(*work, read_once(operands(call)), written(call.outputs), math_type(call, (x, w_ih, w_hh)))


# The elementwise part of a cell, after the two products.


def _pointwise(call: Call, vector: Any, special: Any, units: Expr) -> Cost:
    first = next(tensors(tuple(call.args.values())))
    return Cost(ZERO, units * vector, units * special, read_once(operands(call)), written(call.outputs), first.dtype)


@rule("aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell", kind="recurrent",
      counts="per hidden unit: LSTM 8 vector and 5 special, GRU 7 and 3; biases 2 per gate")  # fmt: skip
def fused_cell(call: Call, conventions: Conventions) -> Cost:
    """input_gates and hidden_gates [B, G*H] to the new state [B, H]."""
    cell = _cell(call)
    vector = cell.vector + (2 * cell.gates if isinstance(call.args["input_bias"], Tensor) else 0)
    return _pointwise(call, vector, cell.special, call.outputs[0].numel)


@rule("aten._thnn_fused_lstm_cell_backward", "aten._thnn_fused_lstm_cell_backward_impl", "aten._thnn_fused_gru_cell_backward",
      kind="recurrent", counts="per hidden unit: LSTM 22 vector and 1 special, GRU 16; bias: B - 1 adds per gate")  # fmt: skip
def fused_cell_backward(call: Call, conventions: Conventions) -> Cost:
    """Gradients of the gates [B, G*H] from those of the new state; less work where grad_hy or grad_cy is missing."""
    cell = _cell(call)
    state = call.args["cx"] if "cx" in call.args else call.args["grad_hy"]
    batch, hidden = state.shape
    vector = cell.back_vector
    if cell.gates == 4 and not isinstance(call.args["grad_cy"], Tensor):
        vector -= 1
    elif cell.gates == 4 and not isinstance(call.args["grad_hy"], Tensor):
        vector, cell = vector - 9, replace(cell, back_special=0)
    cost = _pointwise(call, vector, cell.back_special, state.numel)
    sums = (2 if cell.gates == 3 else 1) if call.args["has_bias"] and not call.name.endswith("_impl") else 0
    return replace(cost, vector=cost.vector + sums * cell.gates * hidden * (batch - 1))

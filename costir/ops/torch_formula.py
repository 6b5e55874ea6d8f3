"""FLOP formulas that users registered with torch (`torch.utils.flop_counter.register_flop_formula`)."""

from __future__ import annotations

import sys
from typing import Any

from costir.ir import Call, Tensor
from costir.symbolic import Expr


def torch_formula(call: Call) -> Expr | None:
    """The FLOPs by a formula registered with torch, or None. Looks only where torch is loaded already.

    torch's formulas get shapes in place of tensors, and whole-number arithmetic on shapes works on expressions as it is.
    """
    counter = sys.modules.get("torch.utils.flop_counter")
    torch = sys.modules.get("torch")
    if counter is None or torch is None:
        return None
    namespace, name, overload = call.op.split(".", 2)
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    formula = counter.flop_registry.get(packet)
    if packet is None or formula is None:
        return None
    arguments = getattr(packet, overload or "default")._schema.arguments
    positional = [_shape(call.args.get(a.name)) for a in arguments if not a.kwarg_only]
    outputs = [o.shape for o in call.outputs]
    try:
        flops = formula(*positional, out_val=outputs[0] if len(outputs) == 1 else tuple(outputs))
    except Exception:  # somebody else's formula on arguments it did not expect: the operator stays unknown
        return None
    import sympy as sp

    return sp.sympify(flops) if isinstance(flops, (int, Expr)) else None


def _shape(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.shape
    return tuple(_shape(i) for i in x) if isinstance(x, tuple) else x

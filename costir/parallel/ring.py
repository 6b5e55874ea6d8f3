"""Context parallelism: the sequence is divided, and attention goes round by torch's own ring attention.

Every call of `scaled_dot_product_attention` becomes `torch.distributed.tensor.experimental`'s ring on this device's part of the
sequence: keys and values of all devices are gathered once, forward and backward; their gradients go round in steps. A causal
sequence is laid out so that each device has an early and a late part of it, which makes all devices work alike. Everything
else in the model has to work on each position alone, and is checked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from costir.errors import TraceError, UndividedError

_ALONG = ("convolution", "_convolution", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "flip", "roll", "lstm", "gru",
          "rnn", "_fft", "scan", "unfold", "im2col", "pool", "istft", "searchsorted", "nonzero")  # fmt: skip
_PRODUCTS = ("bmm", "baddbmm", "matmul", "einsum")
_FOLDS = ("mean", "sum", "amax", "amin", "argmax", "argmin", "max", "min", "prod", "_softmax", "_log_softmax", "var", "std",
          "logsumexp", "var_mean", "sort", "topk", "native_layer_norm")  # fmt: skip


class Ring(TorchFunctionMode):  # type: ignore[misc]
    """Attention along a mesh axis, for the length of a `with`.

    Args:
        mesh: torch's mesh of the axis.
        lengths: of the sequence on one device, at all places where this tells it from all other sizes.
    """

    def __init__(self, mesh: Any, lengths: Collection[int]) -> None:
        super().__init__()
        self.mesh, self.lengths = mesh, lengths
        self.inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if attn_mask is not None:
            raise TraceError("cp takes no mask: torch's ring attention has none but the causal one", "use is_causal=True")
        if query.shape[-2] != key.shape[-2] or query.shape[-1] != value.shape[-1] or query.dim() != 4:
            raise TraceError(
                "cp takes attention of a sequence to itself, [B, N, T, H]", "cross-attention and a cache are not divided"
            )
        from torch.distributed.tensor import DTensor

        if any(isinstance(t, DTensor) for t in (query, key, value)):
            raise TraceError(
                "cp takes attention on each device's own heads, and these are one tensor that all devices share",
                "let the plan give local ones: ColwiseParallel() without use_local_output=False",
            )
        self.inside = True
        try:
            return _function().apply(self, query, key, value, dropout_p, bool(is_causal), scale)
        finally:
            self.inside = False

    def check(self, op: str, args: Mapping[str, Any], out: Any) -> None:
        """Refuse an operator of the forward pass that mixes positions of the sequence outside of attention.

        Raises:
            UndividedError: names it.
        """
        if self.inside or not self.lengths or torch._C._current_autograd_node() is not None:
            return
        name = op.split(".")[1]
        if name.startswith("_scaled_dot_product") or any(_mixes(name, args, out, n) for n in self.lengths):
            raise UndividedError(
                f"cp cannot divide the sequence: {name} mixes its positions, and only attention is exchanged",
                "call scaled_dot_product_attention for attention; what else runs along the sequence needs a plan of your own",
            )


def telling(lengths: Iterable[int], others: Iterable[int]) -> tuple[int, ...]:
    """The lengths, but for those that another dimension, made of the other sizes, may have too."""
    values = {v for v in others if v > 1}
    quotients = {a // b for a in values for b in values if a % b == 0}
    known = {v // n for v in values | quotients | {a * b for a in values for b in quotients} for n in (1, 2) if v % n == 0}
    return tuple(n for n in lengths if n > 1 and n not in known)


def _mixes(name: str, args: Mapping[str, Any], out: Any, length: int) -> bool:
    """Whether an operator makes one position from several."""
    given = [t for t in args.values() if isinstance(t, torch.Tensor) and t.is_floating_point() and length in t.shape]
    if not given:
        return False
    if name in _PRODUCTS and len(given) > 1:
        return True
    if name in _FOLDS:
        dims = args.get("dim", ())
        dims = dims if isinstance(dims, (list, tuple)) else (dims,)
        shape = given[0].shape
        if name == "native_layer_norm":
            dims = range(-len(args["normalized_shape"]), 0)
        return any(isinstance(d, int) and shape[d] == length for d in dims)
    return any(name.startswith(p) or p in name.split("_") for p in _ALONG)


def _function(made: list[Any] = []) -> Any:  # noqa: B006 - made once
    """Ring attention as a function that torch differentiates."""
    if not made:
        from torch.distributed.tensor.experimental._context_parallel import _attention as torch_ring

        options = torch_ring._cp_options

        class RingAttention(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, ring: Ring, q: Any, k: Any, v: Any, dropout: float, causal: bool, scale: Any) -> Any:
                found = _balanced(options, causal, lambda: torch_ring._scaled_dot_product_ring_flash_attention(
                    ring.mesh, q, k, v, dropout, causal, scale=scale))  # fmt: skip
                out, lse, first, second, most_q, most_k, seed, offset = found[:8]
                ctx.save_for_backward(q, k, v, out, lse)
                ctx.rest = (first, second, most_q, most_k, dropout, causal, seed, offset)
                ctx.ring, ctx.scale = ring, scale
                return out

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                q, k, v, out, lse = ctx.saved_tensors
                grads = _balanced(options, ctx.rest[5], lambda: torch_ring._scaled_dot_product_ring_flash_attention_backward(
                    ctx.ring.mesh, grad, q, k, v, out, lse, *ctx.rest, scale=ctx.scale))  # fmt: skip
                return (None, *grads[:3], None, None, None)

        made.append(RingAttention)
    return made[0]


def _balanced(options: Any, causal: bool, call: Callable[[], Any]) -> Any:
    """torch balances the load of causal attention alone."""
    before, options.enable_load_balance = options.enable_load_balance, causal
    try:
        return call()
    finally:
        options.enable_load_balance = before

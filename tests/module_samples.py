# ruff: noqa: E501 - tables of samples, one a line
"""Small examples: every torch.nn module that can be built, functions of torch.fft, linalg and special, every optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Sample = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


def r(*shape: int) -> Tensor:
    """A leaf that wants a gradient."""
    return torch.randn(*shape, requires_grad=True)


def p(*shape: int) -> Tensor:
    """A leaf between 0.1 and 0.9 that wants a gradient."""
    return (torch.rand(*shape) * 0.8 + 0.1).requires_grad_()


def ids(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


def sign(*shape: int) -> Tensor:
    return torch.randint(0, 2, shape).float() * 2 - 1


def _pad(rank: int) -> tuple[int, ...]:
    return (1, 2) * rank


IMAGE = {1: (2, 4, 9), 2: (2, 4, 6, 8), 3: (1, 4, 5, 4, 6)}
ELEMENTWISE = [
    "CELU",
    "ELU",
    "GELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU6",
    "RReLU",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Identity",
    "Dropout",
    "AlphaDropout",
    "FeatureAlphaDropout",
    "Flatten",
    "GLU",
]

MODULES: dict[str, Sample] = {name: (lambda name=name: (getattr(nn, name)(), (r(3, 4),))) for name in ELEMENTWISE}
for _rank, _shape in IMAGE.items():
    _d = f"{_rank}d"
    MODULES |= {
        f"AdaptiveAvgPool{_d}": lambda d=_d, s=_shape: (getattr(nn, f"AdaptiveAvgPool{d}")(2), (r(*s),)),
        f"AdaptiveMaxPool{_d}": lambda d=_d, s=_shape: (getattr(nn, f"AdaptiveMaxPool{d}")(2), (r(*s),)),
        f"AvgPool{_d}": lambda d=_d, s=_shape: (getattr(nn, f"AvgPool{d}")(2), (r(*s),)),
        f"MaxPool{_d}": lambda d=_d, s=_shape: (getattr(nn, f"MaxPool{d}")(2), (r(*s),)),
        f"LPPool{_d}": lambda d=_d, s=_shape: (getattr(nn, f"LPPool{d}")(2, 2), (r(*s),)),
        f"BatchNorm{_d}": lambda d=_d, s=_shape: (getattr(nn, f"BatchNorm{d}")(4), (r(*s),)),
        f"InstanceNorm{_d}": lambda d=_d, s=_shape: (getattr(nn, f"InstanceNorm{d}")(4, affine=True), (r(*s),)),
        f"LazyBatchNorm{_d}": lambda d=_d, s=_shape: (getattr(nn, f"LazyBatchNorm{d}")(), (r(*s),)),
        f"LazyInstanceNorm{_d}": lambda d=_d, s=_shape: (getattr(nn, f"LazyInstanceNorm{d}")(), (r(*s),)),
        f"Conv{_d}": lambda d=_d, s=_shape: (getattr(nn, f"Conv{d}")(4, 6, 3, padding=1, groups=2), (r(*s),)),
        f"ConvTranspose{_d}": lambda d=_d, s=_shape: (getattr(nn, f"ConvTranspose{d}")(4, 6, 3, stride=2), (r(*s),)),
        f"LazyConv{_d}": lambda d=_d, s=_shape: (getattr(nn, f"LazyConv{d}")(6, 3), (r(*s),)),
        f"LazyConvTranspose{_d}": lambda d=_d, s=_shape: (getattr(nn, f"LazyConvTranspose{d}")(6, 3), (r(*s),)),
        f"Dropout{_d}": lambda d=_d, s=_shape: (getattr(nn, f"Dropout{d}")(), (r(*s),)),
        f"CircularPad{_d}": lambda d=_d, s=_shape, k=_rank: (getattr(nn, f"CircularPad{d}")(_pad(k)), (r(*s),)),
        f"ConstantPad{_d}": lambda d=_d, s=_shape, k=_rank: (getattr(nn, f"ConstantPad{d}")(_pad(k), 1.5), (r(*s),)),
        f"ReflectionPad{_d}": lambda d=_d, s=_shape, k=_rank: (getattr(nn, f"ReflectionPad{d}")(_pad(k)), (r(*s),)),
        f"ReplicationPad{_d}": lambda d=_d, s=_shape, k=_rank: (getattr(nn, f"ReplicationPad{d}")(_pad(k)), (r(*s),)),
        f"ZeroPad{_d}": lambda d=_d, s=_shape, k=_rank: (getattr(nn, f"ZeroPad{d}")(_pad(k)), (r(*s),)),
        f"MaxUnpool{_d}": lambda d=_d, s=_shape: (
            lambda x: getattr(nn, f"MaxUnpool{d}")(2)(*getattr(nn, f"MaxPool{d}")(2, return_indices=True)(x)),
            (r(*s),),
        ),
    }

PAIR_LOSSES = ["L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "KLDivLoss", "PoissonNLLLoss"]
MODULES |= {name: (lambda name=name: (getattr(nn, name)(), (r(3, 4), torch.rand(3, 4)))) for name in PAIR_LOSSES}


def _self_attention() -> Callable[[Tensor], Tensor]:
    attention = nn.MultiheadAttention(8, 2)
    return lambda x: attention(x, x, x)[0]


def _decoder_layer() -> nn.Module:
    return nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)


MODULES |= {
    "AdaptiveLogSoftmaxWithLoss": lambda: (nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]), (r(6, 8), ids(20, 6))),
    "BCELoss": lambda: (nn.BCELoss(), (p(3, 4), torch.rand(3, 4))),
    "BCEWithLogitsLoss": lambda: (nn.BCEWithLogitsLoss(pos_weight=torch.rand(4)), (r(3, 4), torch.rand(3, 4))),
    "Bilinear": lambda: (nn.Bilinear(3, 4, 5), (r(2, 3), r(2, 4))),
    "CTCLoss": lambda: (
        nn.CTCLoss(),
        (r(9, 2, 6).log_softmax(2), torch.randint(1, 6, (2, 3)), torch.tensor([9, 9]), torch.tensor([3, 2])),
    ),
    "ChannelShuffle": lambda: (nn.ChannelShuffle(2), (r(1, 4, 3, 3),)),
    "CosineEmbeddingLoss": lambda: (nn.CosineEmbeddingLoss(), (r(3, 4), r(3, 4), sign(3))),
    "CosineSimilarity": lambda: (nn.CosineSimilarity(), (r(3, 4), r(3, 4))),
    "CrossEntropyLoss": lambda: (nn.CrossEntropyLoss(label_smoothing=0.1), (r(3, 4), ids(4, 3))),
    "CrossMapLRN2d": lambda: (nn.LocalResponseNorm(2), (r(2, 4, 3, 3),)),
    "Embedding": lambda: (nn.Embedding(10, 4, max_norm=1.0), (ids(10, 2, 3),)),
    "EmbeddingBag": lambda: (nn.EmbeddingBag(10, 4), (ids(10, 2, 3),)),
    "Fold": lambda: (nn.Fold((4, 5), 2), (r(1, 3 * 4, 12),)),
    "FractionalMaxPool2d": lambda: (nn.FractionalMaxPool2d(2, 3), (r(*IMAGE[2]),)),
    "FractionalMaxPool3d": lambda: (nn.FractionalMaxPool3d(2, 2), (r(*IMAGE[3]),)),
    "GRU": lambda: (nn.GRU(4, 5, 2, bidirectional=True), (r(3, 2, 4),)),
    "GRUCell": lambda: (nn.GRUCell(4, 5), (r(2, 4),)),
    "GaussianNLLLoss": lambda: (nn.GaussianNLLLoss(), (r(3, 4), torch.rand(3, 4), p(3, 4))),
    "GroupNorm": lambda: (nn.GroupNorm(2, 4), (r(*IMAGE[2]),)),
    "HingeEmbeddingLoss": lambda: (nn.HingeEmbeddingLoss(), (r(3, 4), sign(3, 4))),
    "LSTM": lambda: (nn.LSTM(4, 5, 2, batch_first=True), (r(3, 2, 4),)),
    "LSTMCell": lambda: (nn.LSTMCell(4, 5), (r(2, 4),)),
    "LayerNorm": lambda: (nn.LayerNorm(4), (r(3, 4),)),
    "LazyLinear": lambda: (nn.LazyLinear(4), (r(2, 3),)),
    "Linear": lambda: (nn.Linear(3, 4), (r(2, 3),)),
    "LinearCrossEntropyLoss": lambda: (nn.LinearCrossEntropyLoss(8, 5), (r(6, 8), ids(5, 6))),
    "LocalResponseNorm": lambda: (nn.LocalResponseNorm(2), (r(2, 4, 3, 3),)),
    "LogSoftmax": lambda: (nn.LogSoftmax(1), (r(3, 4),)),
    "MarginRankingLoss": lambda: (nn.MarginRankingLoss(), (r(3), r(3), sign(3))),
    "ModuleList": lambda: (nn.ModuleList([nn.Linear(3, 4)])[0], (r(2, 3),)),
    "ModuleDict": lambda: (nn.ModuleDict({"a": nn.Linear(3, 4)})["a"], (r(2, 3),)),
    "MultiLabelMarginLoss": lambda: (nn.MultiLabelMarginLoss(), (r(2, 4), torch.tensor([[3, 0, -1, 1], [0, -1, 1, 2]]))),
    "MultiLabelSoftMarginLoss": lambda: (nn.MultiLabelSoftMarginLoss(), (r(3, 4), torch.rand(3, 4))),
    "MultiMarginLoss": lambda: (nn.MultiMarginLoss(p=2), (r(3, 4), ids(4, 3))),
    "MultiheadAttention": lambda: (_self_attention(), (r(5, 2, 8),)),
    "NLLLoss": lambda: (nn.NLLLoss(weight=torch.rand(4)), (r(3, 4), ids(4, 3))),
    "NLLLoss2d": lambda: (nn.NLLLoss(), (r(2, 3, 4, 5), ids(3, 2, 4, 5))),
    "PairwiseDistance": lambda: (nn.PairwiseDistance(), (r(3, 4), r(3, 4))),
    "PixelShuffle": lambda: (nn.PixelShuffle(2), (r(*IMAGE[2]),)),
    "PixelUnshuffle": lambda: (nn.PixelUnshuffle(2), (r(2, 4, 6, 4),)),
    "RMSNorm": lambda: (nn.RMSNorm(4), (r(3, 4),)),
    "RNN": lambda: (nn.RNN(4, 5), (r(3, 2, 4),)),
    "RNNCell": lambda: (nn.RNNCell(4, 5), (r(2, 4),)),
    "Sequential": lambda: (nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), (r(2, 3),)),
    "SoftMarginLoss": lambda: (nn.SoftMarginLoss(), (r(3, 4), sign(3, 4))),
    "Softmax": lambda: (nn.Softmax(1), (r(3, 4),)),
    "Softmax2d": lambda: (nn.Softmax2d(), (r(*IMAGE[2]),)),
    "Softmin": lambda: (nn.Softmin(1), (r(3, 4),)),
    "SyncBatchNorm": lambda: (nn.SyncBatchNorm(4).eval(), (r(*IMAGE[2]),)),
    "Threshold": lambda: (nn.Threshold(0.1, 1.0), (r(3, 4),)),
    "Transformer": lambda: (nn.Transformer(8, 2, 1, 1, 16), (r(5, 2, 8), r(3, 2, 8))),
    "TransformerDecoder": lambda: (nn.TransformerDecoder(_decoder_layer(), 1), (r(2, 3, 8), r(2, 5, 8))),
    "TransformerDecoderLayer": lambda: (_decoder_layer(), (r(2, 3, 8), r(2, 5, 8))),
    "TransformerEncoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
        (r(2, 5, 8),),
    ),
    "TransformerEncoderLayer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (r(2, 5, 8),)),
    "TripletMarginLoss": lambda: (nn.TripletMarginLoss(), (r(3, 4), r(3, 4), r(3, 4))),
    "TripletMarginWithDistanceLoss": lambda: (nn.TripletMarginWithDistanceLoss(), (r(3, 4), r(3, 4), r(3, 4))),
    "Unflatten": lambda: (nn.Unflatten(1, (2, 2)), (r(3, 4),)),
    "Unfold": lambda: (nn.Unfold(2), (r(*IMAGE[2]),)),
    "Upsample": lambda: (nn.Upsample(scale_factor=2, mode="trilinear"), (r(*IMAGE[3]),)),
    "UpsamplingBilinear2d": lambda: (nn.UpsamplingBilinear2d(scale_factor=2), (r(*IMAGE[2]),)),
    "UpsamplingNearest2d": lambda: (nn.UpsamplingNearest2d(scale_factor=2), (r(*IMAGE[2]),)),
}  # fmt: skip

# Abstract bases, containers of parameters, wrappers that need processes.
NOT_BUILT = {"Container", "DataParallel", "Module", "ParameterDict", "ParameterList", "RNNBase", "RNNCellBase"}

F = nn.functional


def _square(n: int = 4) -> Tensor:
    a = torch.randn(2, n, n)
    return (a @ a.mT + n * torch.eye(n)).requires_grad_()


FUNCTIONS: dict[str, Sample] = {
    **{
        f"interpolate {mode}{' aa' if aa else ''}": lambda mode=mode, aa=aa, s=shape: (
            lambda x: F.interpolate(x, scale_factor=0.5, mode=mode, antialias=aa),
            (r(*s),),
        )
        for mode, aa, shape in (
            ("nearest", False, (1, 2, 8)), ("nearest-exact", False, (1, 2, 8, 8)), ("linear", False, (1, 2, 8)),
            ("bilinear", False, (1, 2, 8, 8)), ("bicubic", False, (1, 2, 8, 8)), ("trilinear", False, (1, 2, 4, 4, 4)),
            ("bilinear", True, (1, 2, 8, 8)), ("bicubic", True, (1, 2, 8, 8)), ("area", False, (1, 2, 8, 8)),
        )
    },
    **{
        f"grid_sample {mode} {len(s) - 2}": lambda mode=mode, s=s: (
            lambda x, g: F.grid_sample(x, g, mode=mode, align_corners=False),
            (r(*s), r(1, 3, 3, 2) if len(s) == 4 else r(1, 3, 3, 3, 3)),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for s in ((1, 2, 5, 4), (1, 2, 5, 4, 3))
        if not (mode == "bicubic" and len(s) == 5)
    },
    "affine_grid": lambda: (lambda t: F.affine_grid(t, (2, 1, 3, 4), align_corners=False), (r(2, 2, 3),)),
    "cdist": lambda: (torch.cdist, (r(5, 3), r(4, 3))),
    "cdist 1": lambda: (lambda a, b: torch.cdist(a, b, p=1), (r(5, 3), r(4, 3))),
    "pdist": lambda: (F.pdist, (r(5, 3),)),
    "normalize": lambda: (F.normalize, (r(3, 4),)),
    "weight_norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), (r(2, 3),)),
    "spectral_norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), (r(2, 3),)),
    "orthogonal": lambda: (nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), (r(2, 4),)),
    "gumbel_softmax": lambda: (lambda x: F.gumbel_softmax(x, hard=True), (r(3, 4),)),
    "one_hot": lambda: (lambda i, x: F.one_hot(i, 5).float() * x, (ids(5, 3), r(3, 5))),
    "var_mean": lambda: (lambda x: torch.var_mean(x, 1)[0] + x.std(1) + x.logsumexp(1) + x.prod(1), (r(3, 4),)),
    "scan": lambda: (lambda x: x.cumsum(1) + x.cumprod(1) + x.logcumsumexp(1) + x.cummax(1)[0], (r(3, 4),)),
    "order": lambda: (lambda x: x.sort(1)[0] + x.median() + x.kthvalue(2, 1)[0][:, None], (r(3, 4),)),
    "topk": lambda: (lambda x: x.topk(2, 1)[0] + x.amax(1, keepdim=True) + x.norm(dim=1, keepdim=True), (r(3, 4),)),
    "index": lambda: (lambda x, i: x[i] + x.index_select(0, i) + x.gather(1, i[:, None].expand(-1, 4)), (r(3, 4), ids(3, 3))),
    "scatter": lambda: (
        lambda x, i: (
            torch.zeros(3, 4).scatter_add(0, i, x)
            + torch.zeros(3, 4).scatter(0, i, x)
            + torch.zeros(3, 4).scatter_reduce(0, i, x, "mean")
            + torch.zeros(3, 4).index_add(0, i[:, 0], x)
        ),
        (r(3, 4), torch.tensor([[0] * 4, [1] * 4, [2] * 4])),
    ),
    "masks": lambda: (lambda x: x.masked_fill(x > 0, 1.0).masked_scatter(x < 0, x * 2) + x[x > 9].sum(), (r(3, 4),)),
    "rearrange": lambda: (
        lambda x: torch.cat([x.roll(1, 1), x.flip(0), x.tril(), x.repeat(1, 1), torch.stack([x, x])[0]]),
        (r(3, 4),),
    ),
    "unfold": lambda: (lambda x: x.unfold(1, 3, 1).sum(-1) + x.diagonal().sum(), (r(3, 6),)),
    "assign": lambda: (_assign, (r(3, 4),)),
    "rope": lambda: (_rope, (r(2, 5, 4),)),
    "complex": lambda: (lambda x: torch.view_as_real(torch.view_as_complex(x) * torch.polar(x, x)[..., 0]), (r(3, 4, 2),)),
    "stft": lambda: (lambda x: torch.stft(x, 8, window=torch.hann_window(8), return_complex=True).abs(), (r(40),)),
    "istft": lambda: (
        lambda x: torch.istft(torch.stft(x, 8, window=torch.hann_window(8), return_complex=True), 8, window=torch.hann_window(8)),
        (r(40),),
    ),
    "scan by hand": lambda: (_selective_scan, (r(2, 5, 3), p(2, 5, 3))),
    "random": lambda: (lambda x: x + torch.randn(3, 4) + torch.rand_like(x) + torch.bernoulli(torch.rand(3, 4)), (r(3, 4),)),
    "bucketize": lambda: (lambda x: x * torch.bucketize(x, torch.arange(4.0)) + torch.histc(x.detach(), 4), (r(3, 4),)),
}  # fmt: skip


def _assign(x: Tensor) -> Tensor:
    z = x.clone()
    z[0] = x[1]
    z[:, torch.tensor([0, 2])] = 1.0
    z[z > 1] = 0.0
    return z.add_(1).mul_(2).clamp_(min=0).relu_()


def _rope(x: Tensor) -> Tensor:
    freqs = torch.outer(torch.arange(5).float(), 1 / 10000 ** (torch.arange(0, 4, 2) / 4))
    emb = torch.cat([freqs, freqs], -1)
    a, b = x.chunk(2, -1)
    return x * emb.cos() + torch.cat([-b, a], -1) * emb.sin()


def _selective_scan(x: Tensor, decay: Tensor) -> Tensor:
    state = torch.zeros(2, 3)
    out = []
    for t in range(x.shape[1]):
        state = decay[:, t].neg().exp() * state + F.softplus(x[:, t])
        out.append(state)
    return torch.stack(out, 1)


for _name in ["fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "rfft", "rfft2", "rfftn", "ihfft", "fftshift", "ifftshift"]:
    FUNCTIONS[f"fft.{_name}"] = lambda name=_name: (getattr(torch.fft, name), (r(4, 8),))
for _name in ["irfft", "irfft2", "irfftn", "hfft"]:
    FUNCTIONS[f"fft.{_name}"] = lambda name=_name: (lambda x: getattr(torch.fft, name)(torch.complex(x, x)), (r(4, 8),))

for _name in [
    "cholesky",
    "det",
    "slogdet",
    "inv",
    "qr",
    "svdvals",
    "eigvalsh",
    "eigh",
    "pinv",
    "matrix_exp",
    "lu",
    "lu_factor",
    "matrix_norm",
    "matrix_rank",
    "cond",
    "eigvals",
    "vector_norm",
    "diagonal",
]:
    FUNCTIONS[f"linalg.{_name}"] = lambda name=_name: (getattr(torch.linalg, name), (_square(),))
FUNCTIONS |= {
    "linalg.svd": lambda: (lambda a: torch.linalg.svd(a)[1], (_square(),)),
    "linalg.eig": lambda: (lambda a: torch.linalg.eig(a)[0].abs(), (_square(),)),
    "linalg.solve": lambda: (torch.linalg.solve, (_square(), r(2, 4, 3))),
    "linalg.solve_triangular": lambda: (
        lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False),
        (_square(), r(2, 4, 3)),
    ),
    "linalg.lstsq": lambda: (lambda a, b: torch.linalg.lstsq(a, b)[0], (_square(), r(2, 4, 3))),
    "linalg.lu_solve": lambda: (lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b), (_square(), r(2, 4, 3))),
    "linalg.ldl_factor": lambda: (lambda a: torch.linalg.ldl_factor(a.detach())[0], (_square(),)),
    "linalg.cross": lambda: (torch.linalg.cross, (r(4, 3), r(4, 3))),
    "linalg.vander": lambda: (torch.linalg.vander, (r(4),)),
    "linalg.multi_dot": lambda: (lambda a, b: torch.linalg.multi_dot([a, b, a]), (r(3, 4), r(4, 3))),
    "cholesky_solve": lambda: (lambda b, a: torch.cholesky_solve(b, torch.linalg.cholesky(a)), (r(2, 4, 3), _square())),
    "cholesky_inverse": lambda: (lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)), (_square(),)),
}

SPECIAL_ONE = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log1p",
    "log_ndtr",
    "ndtr",
    "ndtri",
    "logit",
    "psi",
    "sinc",
    "round",
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
]
for _name in SPECIAL_ONE:
    FUNCTIONS[f"special.{_name}"] = lambda name=_name: (lambda x: getattr(torch.special, name)(x.detach()), (p(3, 4),))
for _name in ["gammainc", "gammaincc", "xlog1py", "xlogy", "zeta"]:
    FUNCTIONS[f"special.{_name}"] = lambda name=_name: (
        lambda x, y: getattr(torch.special, name)(x.detach() + 1, y.detach() + 1),
        (p(3, 4), p(3, 4)),
    )
FUNCTIONS["special.polygamma"] = lambda: (lambda x: torch.special.polygamma(2, x), (p(3, 4),))
FUNCTIONS["special.multigammaln"] = lambda: (lambda x: torch.special.multigammaln(x + 3, 2), (p(3, 4),))
for _name in ["chebyshev_polynomial_t", "hermite_polynomial_h", "laguerre_polynomial_l", "legendre_polynomial_p"]:
    FUNCTIONS[f"special.{_name}"] = lambda name=_name: (lambda x: getattr(torch.special, name)(x.detach(), 3), (p(3, 4),))


def optimizer(name: str, **options: Any) -> Callable[[], None]:
    """Two steps of an optimizer on a small model; the second meets its state."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)) if name != "Muon" else nn.Linear(3, 4, bias=False)
    if name == "SparseAdam":
        model = nn.Embedding(5, 4, sparse=True)
    steps = getattr(torch.optim, name)(model.parameters(), **options)
    data = ids(5, 2) if name == "SparseAdam" else torch.randn(2, 3)

    def run() -> None:
        for _ in range(2):
            steps.zero_grad(set_to_none=False)
            with torch.enable_grad():
                loss = model(data).square().mean()
                loss.backward()
            if name == "LBFGS":
                steps.step(loss.clone)
            else:
                steps.step()

    return run


_NAMES = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
_FORMS: tuple[dict[str, Any], ...] = ({}, {"foreach": True}, {"foreach": False})
OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {"lr": 0.01, **form}) for name in _NAMES for form in (_FORMS if name != "Muon" else _FORMS[:1])),
    ("LBFGS", {"lr": 0.1}), ("SparseAdam", {}), ("Adam", {"fused": True}), ("AdamW", {"fused": True}),
    ("SGD", {"fused": True, "lr": 0.1, "momentum": 0.9}), ("Adagrad", {"fused": True}), ("AdamW", {"amsgrad": True, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}), ("RMSprop", {"centered": True, "momentum": 0.9}),
)  # fmt: skip

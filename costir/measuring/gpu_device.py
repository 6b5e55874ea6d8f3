"""Which GPU there is, by what torch says of it, and in which precision it multiplies float32."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from costir.errors import CostirError


@dataclass(frozen=True, slots=True)
class Gpu:
    """What torch says about a GPU.

    Attributes:
        name: of the product.
        vendor: NVIDIA or AMD.
        capability: the compute capability, "9.0".
        library: "CUDA 12.8" or "ROCm 6.4", as torch was built for.
        total, free: bytes of memory.
        l2: bytes of the cache that all of it shares; 0 where torch does not say.
        processors: how many multiprocessors.
    """

    name: str
    vendor: str
    capability: str
    library: str
    total: int
    free: int
    l2: int
    processors: int


# ------------------------------------------------------------------------------------------------------------- which one


def is_there() -> bool:
    """Whether torch sees a GPU that it can be told to use as "cuda"."""
    with warnings.catch_warnings():  # torch warns where the driver is missing or too old
        warnings.simplefilter("ignore")
        return bool(torch.cuda.is_available())


def chosen(index: int) -> torch.device:
    """A GPU by its number.

    Raises:
        CostirError: it is not there.
    """
    if not is_there():
        built = torch.version.cuda or torch.version.hip
        why = "it sees none" if built else f"torch {torch.__version__} is built for the CPU alone"
        raise CostirError(f"no GPU is there that torch can use: {why}", "leave --device out to calibrate the CPU")
    count = torch.cuda.device_count()
    if index >= count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise CostirError(f"no GPU cuda:{index} is there", f"choose {there}")
    return torch.device("cuda", index)


def seen(device: torch.device) -> Gpu:
    """What torch says about a GPU."""
    p = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    hip = torch.version.hip
    name = re.sub(r"[^ -!#-\[\]-~]", " ", str(p.name)).strip()[:100] or "GPU"
    return Gpu(
        name, "AMD" if hip else "NVIDIA", f"{p.major}.{p.minor}", f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}",
        int(total), int(free), int(getattr(p, "L2_cache_size", 0)), int(p.multi_processor_count),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- precision


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Products of float32 as "ieee" or "tf32"; torch before 2.9 has a switch of another name."""
    matmul = torch.backends.cuda.matmul
    key, value = ("fp32_precision", name) if hasattr(matmul, "fp32_precision") else ("allow_tf32", name == "tf32")
    before = getattr(matmul, key)
    setattr(matmul, key, value)
    try:
        yield
    finally:
        setattr(matmul, key, before)


def in_tf32(on: torch.device) -> bool:
    """Whether float32 is multiplied in tf32 now, by how exact a product is: not every GPU has it, or torch is overruled."""
    with on:
        a, b = torch.randn(512, 512), torch.randn(512, 512)
    exact = a.double() @ b.double()
    return float((torch.mm(a, b).double() - exact).norm() / exact.norm()) > 3e-5  # 4e-4 with 10 bits, 1e-6 with 23


def convolution_precision() -> str:
    """What float32's convolutions and recurrent layers are multiplied in, which is left as torch has it."""
    return "tf32 where there is one" if torch.backends.cudnn.allow_tf32 else "fp32"


__all__ = ["Gpu", "chosen", "convolution_precision", "in_tf32", "is_there", "precision", "seen"]

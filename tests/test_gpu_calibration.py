"""A GPU's calibration without a GPU: what was put into a model of one must come out, and no file where something is wrong."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from calibrations import made_up
from fake_gpu import META, Model, ModelClock, installed

from costir import cli
from costir.errors import CostirError
from costir.hardware import load_chip
from costir.measuring import gpu, gpu_device, gpu_kernels
from costir.measuring.clock import HOST, CudaClock
from costir.measuring.kernel import Kernel
from costir.measuring.kernels import kernels

RECURRENT = ("lstm", "gru")  # slow where tensors have no memory
GPU = Model().gpu()


@pytest.fixture(scope="module")
def whole():
    """The whole calibration of the model, all grids as they are; of recurrent layers the ends."""
    more = [
        replace(k, axes={a: (g[0], g[-1]) for a, g in k.axes.items()}) if k.name in RECURRENT else k
        for k in gpu_kernels.others(GPU.free // gpu.SHARE)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "WARM", 0.0)
        patch.setattr(gpu, "BUDGET", 1e9)
        patch.setattr(gpu, "in_tf32", lambda on: torch.backends.cuda.matmul.fp32_precision == "tf32")
        return gpu.measured(GPU, ModelClock(Model()), META, more=more)


@pytest.fixture(scope="module")
def chip(whole, tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "mine.toml"
    path.write_text(whole[1])
    return load_chip(str(path))


# ------------------------------------------------------------------------------------------------ what was put in comes out


def test_rates_are_those_of_the_model(chip):
    model = Model()
    assert set(chip.matrix) == set(model.rates)
    for name, rate in chip.matrix.items():
        best = 2 * 8192**3 / (model.kernel + 2 * 8192**3 / model.rates[name])  # the largest product, started once
        assert float(rate) == pytest.approx(best, rel=1e-3)
        assert float(chip.ridge(name)) == pytest.approx(float(rate) / float(chip.memory_bandwidth))
    assert chip.vector["fp32"] == chip.matrix["fp32"]


def test_bandwidths_are_those_of_the_model(whole):
    """Six kernels over each working set, by hand: bytes moved, bytes touched."""
    model = Model()

    def best(size: int) -> float:
        n, half, third = size // 4, size // 8, size // 12
        kernels = (
            (4 * n, 4 * n),
            (4 * n, 4 * n),
            (8 * n, 4 * n),
            (8 * half, 8 * half),
            (8 * half, 8 * half),
            (12 * third,) * 2,
        )
        times = [(moved, model.kernel + moved / model.bandwidth(touched)) for moved, touched in kernels]
        return max(moved / max(took - model.kernel, took / 4) for moved, took in times)  # no less than a quarter is work

    found = {int(k.rpartition("_")[2]): v for k, v in whole[0].numbers.items() if k.startswith("bandwidth_")}
    assert list(found) == [1 << p for p in (16, 18, *range(20, 31), 32)]
    for size, rate in found.items():
        assert rate == pytest.approx(max(best(s) for s in found if s >= size), rel=1e-3)
    rates = list(found.values())
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(model.slow, rel=0.01)


def test_the_chip_is_a_gpu_with_its_memory_and_cache(chip):
    assert (chip.kind, chip.vendor, chip.unit, chip.name) == ("gpu", "NVIDIA", "GPU", "Imaginary X1, as measured")
    assert chip.memory_capacity == 80 << 30
    assert chip.onchip["l2"].capacity == 40 << 20
    assert Model().slow < float(chip.onchip["l2"].bandwidth) <= Model().fast


def test_overheads_are_those_of_the_model(whole):
    numbers, model = whole[0].numbers, Model()
    assert numbers["launch"] == pytest.approx(model.launch, rel=0.01)
    assert numbers["kernel"] == pytest.approx(model.kernel, rel=0.01)
    assert numbers["view"] == pytest.approx(1e-6, rel=0.2)
    assert numbers["grad"] == pytest.approx(0, abs=1e-8)  # the model's host takes no longer with autograd


def test_curves_are_those_of_the_cpu_and_never_fall(whole, chip):
    c = whole[0]
    assert "left_out" not in c.about
    without = set(made_up().curves) - set(c.curves)  # what starts no kernel, and what asks for the caches of a CPU
    seldom = {k.name for k in kernels() if k.seldom}
    assert all(name == "empty" or name.startswith("far_") or name in seldom for name in without)
    assert {"exp", "softmax", "bmm_nt", "attention", "conv3", "depthwise", "lstm", "batch_norm", "far_read"} < set(c.curves)
    assert {f"mm_nt_{t}" for t in ("bf16", "fp16", "tf32", "fp64", "fp8")} < set(c.curves)
    for name, curve in c.curves.items():
        at = dict(zip(itertools.product(*curve.grid), curve.seconds, strict=True))
        for axis, grid in enumerate(curve.grid):
            for point in at:
                if name == "streamed" and curve.axes[axis] == "k":  # of the same 1 MB of weights in longer rows
                    continue
                i = grid.index(point[axis])
                before = (*point[:axis], grid[i - 1], *point[axis + 1 :])
                assert i == 0 or at[before] <= at[point] * (1 + 1e-9), name
    for name, curve in c.curves.items():  # the file says the same, in whole nanoseconds
        assert chip.calibration.curves[name].grid == curve.grid
        assert chip.calibration.curves[name].seconds == pytest.approx(curve.seconds, abs=1e-9)
    assert chip.calibration.gpu == "Imaginary X1"
    assert dict(chip.calibration.about) == dict(c.about)


def test_a_curve_has_the_operators_own_time(whole):
    """By hand: bytes over bandwidth, or FLOPs over the rate, and the kernel's least time; attention in its own type."""
    c, m = whole[0].curves, Model()
    assert c["exp"].at(1 << 26) == pytest.approx(m.kernel + 8 * 2**26 / m.slow, rel=1e-6)
    assert c["exp"].at(1 << 20) == pytest.approx(m.kernel + 8 * 2**20 / m.fast, rel=1e-6)
    assert c["mm_nn"].at(4096, 8192, 256) == pytest.approx(m.kernel + 2 * 4096 * 8192 * 256 / 5e13, rel=1e-6)
    assert c["conv3"].at(56, 256, 256) == pytest.approx(m.kernel + 2 * 9 * 56**2 * 256**2 / 5e13, rel=1e-6)
    assert c["zeros"].at(1 << 24) == pytest.approx(m.kernel + 4 * 2**24 / m.slow, rel=1e-6)
    assert c["attention_bf16"].at(64, 2048, 128) > 4 * 64 * 2048**2 * 128 / 8e14
    assert c["attention"].at(64, 2048, 128) > 4 * 64 * 2048**2 * 128 / 5e13
    assert c["attention_backward"].at(64, 2048, 128) > 1.9 * 4 * 64 * 2048**2 * 128 / 5e13


def test_analyze_and_chips_take_the_file(chip, capsys):
    assert cli.main(["analyze", "X[B,D] . Y[D,F]", "--chip", chip.path, "--dtype", "bf16"]) == 0
    assert "798.8 TFLOP/s" in capsys.readouterr().out
    assert cli.main(["solve", "bf16[B,8192] . [8192,8192]", "--for", "B", "--chip", chip.path, "--format", "json"]) == 0
    assert "mine" in capsys.readouterr().out
    assert cli.main(["chips", chip.path]) == 0
    out = capsys.readouterr().out
    assert "ridge.bf16" in out
    assert "85.9 GB (80 GiB)" in out


# -------------------------------------------------------------------------------------------------- the command, faked CUDA


@pytest.fixture
def few(monkeypatch, tmp_path):
    """A few kernels on small grids, and a home of one's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(CudaClock, "most_loops", 16)
    monkeypatch.setattr(gpu, "BUDGET", 1e9)  # whoever runs the tests may take their time
    monkeypatch.setattr(gpu, "WORKING_SETS", (1 << 16, 1 << 25, 1 << 32))
    monkeypatch.setattr(gpu_kernels, "EDGES", (16, 8192))
    monkeypatch.setattr(gpu_kernels, "LONG", (1, 8192))
    monkeypatch.setattr(gpu_kernels, "WIDE", (64, 8192))
    names = ("exp", "softmax", "attention_bf16", "conv3", "zeros")
    kernels = [k for k in gpu_kernels.others(1 << 34) if k.name in names]
    small = [Kernel(k.name, {a: g[-2:] for a, g in k.axes.items()}, k.make) for k in kernels]
    monkeypatch.setattr(gpu, "others", lambda room: small)
    return tmp_path


def test_the_command_writes_here_gpu(few, monkeypatch, capsys):
    model = Model()
    with installed(monkeypatch, model, 2) as (_, asked):
        assert cli.main(["calibrate", "--device", "cuda", "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert cli.main(["calibrate", "--device", "cuda:1"]) == 0
        said = capsys.readouterr().out
    assert found["file"] == str(few / "costir" / "here-gpu.toml")
    assert asked == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert sorted(p.name for p in (few / "costir").iterdir()) == ["here-gpu.toml", "here-gpu1.toml"]
    for name, rate in found["rates"].items():
        assert rate == pytest.approx(model.rates[name], rel=0.02)
    assert found["numbers"]["kernel"] == pytest.approx(model.kernel, rel=0.05)
    assert found["numbers"]["launch"] == pytest.approx(model.launch, rel=0.05)
    chip = load_chip("here-gpu")
    assert chip.id == "here-gpu"
    assert float(chip.memory_bandwidth) == pytest.approx(model.slow, rel=0.02)
    assert chip.calibration.about["library"] == "CUDA 12.8"
    curve = chip.calibration.curves["exp"]
    assert curve.seconds[-1] == pytest.approx(model.kernel + 8 * curve.grid[0][-1] / model.slow, rel=0.01)
    for words in (
        "Imaginary X1, compute capability 9.0",
        "bf16",
        "ridge",
        "4.295 GB",
        "--chip here-gpu1",
        "attention_bf16",
    ):
        assert words in said
    assert cli.main(["chips", "here-gpu1"]) == 0
    assert cli.main(["analyze", "examples/mlp.py", "--chip", "HERE-GPU", "--phase", "train"]) == 0


def test_an_interruption_leaves_no_file(few, monkeypatch, capsys):
    def interrupted(room):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "others", interrupted)
    old = few / "old.toml"
    old.write_text('# made by costir 0.1.0\nname = "x"\n[matrix]\nbf16 = 1e14\n[memory]\nbandwidth = 1e12\n')
    before = old.read_text()
    with installed(monkeypatch, Model()):
        assert cli.main(["calibrate", "--device", "cuda"]) == 130
        assert cli.main(["calibrate", "--device", "cuda", "-o", str(old)]) == 130
    assert list((few / "costir").iterdir()) == []
    assert old.read_text() == before
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"  # as it was found


def test_what_cuda_complains_about_is_a_sentence(few, monkeypatch, capsys):
    def broken(clock, on):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...")

    monkeypatch.setattr(gpu, "overheads", broken)
    with installed(monkeypatch, Model()):
        assert cli.main(["calibrate", "--device", "cuda"]) == 2
    err = capsys.readouterr().err
    assert "the GPU could not be calibrated: CUDA error: an illegal memory access was encountered\n" in err
    assert list((few / "costir").iterdir()) == []


def test_too_little_free_memory_is_a_sentence(few, monkeypatch, capsys):
    with installed(monkeypatch, Model(free=1 << 30)):
        assert cli.main(["calibrate", "--device", "cuda"]) == 2
    assert "1.0 GiB of the GPU's 80.0 GiB are free, too little to measure it" in capsys.readouterr().err


def test_nothing_takes_more_than_a_third_of_free_memory(monkeypatch):
    """Largest arrays of each kernel, and the working sets, by the memory of a small GPU."""
    largest = []

    class Held(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            leaves = torch.utils._pytree.tree_leaves((args, kwargs, out))
            held = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in leaves if isinstance(t, torch.Tensor)}
            largest.append(sum(held.values()))
            return out

    for free in (2 << 30, 8 << 30, 70 << 30):
        room = free // gpu.SHARE
        kernels = [k for t in gpu_kernels.TYPES for k in gpu_kernels.products(t, room)] + gpu_kernels.others(room)
        for k in (k for k in kernels if k.name not in RECURRENT):
            with Held():
                with META:
                    run = k.make(**{a: g[-1] for a, g in k.axes.items()})
                made = torch.utils._pytree.tree_leaves(run())
            assert max(largest) <= room, (k.name, free)
            assert all(t.device == META for t in made if isinstance(t, torch.Tensor)), k.name  # where it was made
            largest.clear()
        assert max(gpu._sets(replace(GPU, free=free, l2=1 << 20))) * gpu.HELD * gpu.SHARE <= free


def test_a_kernel_or_type_that_is_not_there_is_named(few, monkeypatch, capsys):
    def missing(heads, length, width):
        raise NotImplementedError("Could not run 'aten::x' with arguments from the 'CUDA' backend; and so on")

    exp = next(k for k in gpu.others(0) if k.name == "exp")
    monkeypatch.setattr(
        gpu, "others", lambda room: [Kernel("attention", {"heads": (1,), "length": (1,), "width": (1,)}, missing), exp]
    )
    real = torch._scaled_mm

    def no_fp8(*a, **k):
        raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 8.9")

    with installed(monkeypatch, Model()):
        monkeypatch.setattr(torch, "_scaled_mm", no_fp8)
        monkeypatch.setattr(gpu, "in_tf32", lambda on: False)  # a GPU that has none
        assert cli.main(["calibrate", "--device", "cuda"]) == 0
        monkeypatch.setattr(torch, "_scaled_mm", real)
        said = capsys.readouterr().out
        assert "attention: Could not run 'aten::x'" in said
        assert "fp8: torch._scaled_mm is only supported" in said
        assert "tf32: float32 is not multiplied in tf32 here" in said
        chip = load_chip("here-gpu")
        assert set(chip.matrix) == {"fp32", "bf16", "fp16", "fp64"}
        assert set(chip.calibration.curves) == {"exp", "mm_nn", "mm_nt", "mm_tn", "mm_nt_bf16", "mm_nt_fp16", "mm_nt_fp64"}
        monkeypatch.setattr(gpu, "in_tf32", lambda on: True)  # a library that does not do as it is told
        assert cli.main(["calibrate", "--device", "cuda"]) == 2
    assert "no float32 product was timed: float32 is not multiplied in fp32 here" in capsys.readouterr().err


def test_when_time_is_over_what_is_left_is_named(few, monkeypatch, capsys):
    exp, softmax = (next(k for k in gpu.others(0) if k.name == n) for n in ("exp", "softmax"))
    now = [0.0]

    def slow(**point):
        now[0] += 30.0
        return exp.make(16)

    monkeypatch.setattr(gpu, "BUDGET", 45.0)
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(gpu, "others", lambda room: [exp, replace(softmax, make=slow), replace(exp, name="log")])
    with installed(monkeypatch, Model()):
        assert cli.main(["calibrate", "--device", "cuda", "-o", str(few / "g.toml")]) == 0
    chip = load_chip(str(few / "g.toml"))
    assert chip.calibration.about["left_out"] == "softmax: no time was left; log: no time was left"
    assert "exp" in chip.calibration.curves


def test_what_takes_too_long_is_reckoned_from_what_was_timed():
    """At 1 TFLOP/s the largest products take seconds: they are not run, and the rate is that of the others."""
    ran = []

    def make(m: int, n: int, k: int):
        ran.append((m, n, k))
        a, b = torch.ones(m, k), torch.ones(k, n)
        return lambda: torch.mm(a, b)

    model = Model(rates={**Model().rates, "fp32": 1e12})
    c = gpu.GpuCalibrator(None, ModelClock(model), META, math.inf)
    edges = (16, 1024, 4096, 8192)
    curve = c.curve(Kernel("mm_nn", dict.fromkeys("mnk", edges), make))
    assert (8192, 8192, 8192) not in ran
    assert all(2 * math.prod(p) / 1e12 < gpu.SLOW * 1.01 for p in ran)
    assert curve.at(8192, 8192, 8192) == pytest.approx(2 * 8192**3 / 1e12, rel=0.001)


# --------------------------------------------------------------------------------------------------------- real tensors


def test_all_kernels_run_with_real_tensors():
    """Every one, at the smallest point of its grid, on the CPU: so that no operator is misspelled."""
    room = 1 << 40
    kernels = [k for t in gpu_kernels.TYPES for k in gpu_kernels.products(t, room)] + gpu_kernels.others(room)
    assert len(kernels) == len({k.name for k in kernels})
    with torch.no_grad():
        for k in kernels:
            assert k.make(**{a: g[0] for a, g in k.axes.items()})() is not None, k.name
    text = repr(gpu_kernels._SAME)
    assert "for_cpu" not in text
    a, b = gpu_kernels._product(torch.float32, "tn")(5, 7, 3)(), gpu_kernels._product(torch.float32, "nt")(5, 7, 3)()
    assert a.shape == b.shape == (5, 7)


def test_a_calibration_with_real_tensors(monkeypatch):
    """On the CPU and by its clock: rates and overheads are positive, float32 is exact there."""
    monkeypatch.setattr(gpu, "WARM", 0.0)
    monkeypatch.setattr(gpu, "WORKING_SETS", (1 << 16, 1 << 26))
    for name in ("EDGES", "LONG", "WIDE"):
        monkeypatch.setattr(gpu_kernels, name, (16, 128))
    exp = Kernel("exp", {"n": (16, 4096)}, lambda n: (lambda x: lambda: x.exp())(torch.rand(n)))
    types = [t for t in gpu_kernels.TYPES if t.name in ("fp32", "tf32", "fp64")]
    c, text = gpu.measured(replace(GPU, free=1 << 30, l2=0), HOST, torch.device("cpu"), types=types, more=[exp])
    assert set(c.curves) == {"mm_nn", "mm_nt", "mm_tn", "mm_nt_fp64", "exp"}
    assert c.about["left_out"].startswith("tf32: ")
    assert all(c.numbers[k] > 0 for k in ("launch", "kernel", "grad", "view", "module"))
    assert 'kind = "gpu"' in text


def test_tf32_is_seen_by_how_exact_a_product_is(monkeypatch):
    real = torch.mm
    assert not gpu_device.in_tf32(torch.device("cpu"))

    def rounded(a, b):  # to 10 bits of mantissa
        cut = [((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32) for x in (a, b)]
        return real(*cut)

    monkeypatch.setattr(torch, "mm", rounded)
    assert gpu_device.in_tf32(torch.device("cpu"))


def test_the_precision_is_set_by_either_name(monkeypatch):
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    with gpu_device.precision("tf32"):
        assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == before

    class Old:  # as before torch 2.9
        allow_tf32 = False

    monkeypatch.setattr(torch.backends.cuda, "matmul", Old)
    with gpu_device.precision("tf32"):
        assert Old.allow_tf32
    assert not Old.allow_tf32


def test_a_gpu_that_is_not_among_them(few, monkeypatch, capsys):
    with installed(monkeypatch, Model(), 2):
        assert cli.main(["calibrate", "--device", "cuda:5"]) == 2
    assert "no GPU cuda:5 is there\n        choose cuda:0 to cuda:1" in capsys.readouterr().err


def test_a_failure_names_what_failed():
    with pytest.raises(CostirError, match="could not be calibrated: out of memory"), gpu.failures():
        raise torch.OutOfMemoryError("out of memory\nmore")

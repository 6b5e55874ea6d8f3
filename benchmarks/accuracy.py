"""How close `costir measure` comes: models that calibration never sees, estimated and then run, one thread, eager.

    python benchmarks/accuracy.py --add runs.json     # calibrates, measures, adds the run to those of the file, prints all
    python benchmarks/accuracy.py --chip my-cpu.toml  # with this calibration

Nothing else must run on the machine: it takes a minute and a half a run. The table is that of docs/measuring.md.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costir.hardware import load_chip
from costir.load.family import Built, Family
from costir.measuring import calibrate as calibrating
from costir.measuring.kernel import Kernel
from costir.measuring.kernels import kernels
from costir.measuring.lesson import gpt
from costir.measuring.measure import Summary, measure
from costir.output import write

TINY = ("unary", "empty", "mm_nn", "mm_nt", "mm_tn")
NOISY = 0.20  # repeated steps that spread by more than this say little


# ------------------------------------------------------------------------------------------------------------- models


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.second, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        plain = stride == 1 and inside == outside
        shorter = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.shortcut = nn.Identity() if plain else shorter

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        return F.relu(y + self.shortcut(x))


def resnet(B: int) -> Built:
    layers = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return Built(nn.Sequential(*stem, *layers, *head).eval(), (torch.rand(B, 3, 32, 32),), {})


def mlp(B: int) -> Built:
    layers = (nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 2048), nn.GELU())
    return Built(nn.Sequential(*layers, nn.Linear(2048, 512)), (torch.rand(B, 512),), {})


class Recurrent(nn.Module):  # type: ignore[misc]
    """Two recurrent layers and a classifier of the last step."""

    def __init__(self, kind: type[nn.Module], width: int, hidden: int) -> None:
        super().__init__()
        self.layers, self.head = kind(width, hidden, 2, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])


def lstm(B: int, T: int) -> Built:
    return Built(Recurrent(nn.LSTM, 128, 256).eval(), (torch.rand(B, T, 128),), {})


def gru(B: int, T: int) -> Built:
    return Built(Recurrent(nn.GRU, 64, 96), (torch.rand(B, T, 64),), {})


def bert(B: int, T: int) -> Built:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=4)).eval()
    return Built(model, (torch.randint(0, 30000, (B, T)),), {})


def llama(B: int, T: int) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128, intermediate_size=384, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        vocab_size=512, use_cache=False,
    )  # fmt: skip
    tokens = torch.randint(0, 512, (B, T))
    return Built(LlamaForCausalLM(config), (tokens,), {"labels": tokens})


def encoder(B: int, T: int) -> Built:
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.1, batch_first=True)
    return Built(nn.TransformerEncoder(layer, 2).eval(), (torch.rand(B, T, 128),), {})


class Separable(nn.Module):  # type: ignore[misc]
    """A convolution of each channel by itself, then one across channels, then one in four groups."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.each = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.across, self.norm = nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.grouped = nn.Conv2d(channels, channels, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.hardswish(self.grouped(self.norm(self.across(self.each(x)))))


def separable(B: int) -> Built:
    stem, head = nn.Conv2d(3, 48, 3, 2, 1), (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    return Built(nn.Sequential(stem, *(Separable(48) for _ in range(4)), *head).eval(), (torch.rand(B, 3, 64, 64),), {})


class UNet(nn.Module):  # type: ignore[misc]
    """Down, across and up again, with group norm and SiLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        c = channels
        self.stem, self.down = self._block(3, c), self._block(c, 2 * c)
        self.up, self.out = nn.ConvTranspose2d(2 * c, c, 2, 2), self._block(2 * c, c)
        self.head = nn.Conv2d(c, 3, 1)

    @staticmethod
    def _block(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        low = self.down(F.max_pool2d(high, 2))
        return self.head(self.out(torch.cat((high, self.up(low)), 1)))


def unet(B: int) -> Built:
    return Built(UNet(32), (torch.rand(B, 3, 32, 32),), {})


class Patches(nn.Module):  # type: ignore[misc]
    """A small vision transformer, attention by `scaled_dot_product_attention`."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.patch, self.place = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.zeros(1, 65, width))
        self.token, self.head = nn.Parameter(torch.zeros(1, 1, width)), nn.Linear(width, 100)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "norm1": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
                "norm2": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
            })
            for _ in range(layers)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.place
        for f in self.layers:
            q, k, v = f["qkv"](f["norm1"](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + f["out"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            x = x + f["down"](F.gelu(f["up"](f["norm2"](x))))
        return self.head(x[:, 0])


def patches(B: int) -> Built:
    return Built(Patches(192, 3, 4), (torch.rand(B, 3, 64, 64),), {})


class Mixer(nn.Module):  # type: ignore[misc]
    """MLPs over the patches, then over the channels."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.along = nn.Sequential(nn.Linear(length, 2 * length), nn.GELU(), nn.Linear(2 * length, length))
        self.across = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.along(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.across(self.norm2(x))


def mixer(B: int) -> Built:
    return Built(nn.Sequential(*(Mixer(50, 160) for _ in range(4))), (torch.rand(B, 50, 160),), {})


class Recommender(nn.Module):  # type: ignore[misc]
    """Embeddings of eight categories beside numbers, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20000, 32) for _ in range(8))
        sizes = (8 * 32 + 13, 400, 200, 1)
        self.layers = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        x = torch.cat([numbers, *(f(k) for f, k in zip(self.tables, kinds.unbind(1), strict=True))], 1)
        for f in self.layers:
            x = torch.sigmoid(f(x))
        return x


def recommender(B: int) -> Built:
    return Built(Recommender().eval(), (torch.rand(B, 13), torch.randint(0, 20000, (B, 8))), {})


def audio(B: int) -> Built:
    sizes = (1, 24, 48, 96)
    layers = [f for a, b in itertools.pairwise(sizes) for f in (nn.Conv1d(a, b, 9, 4, 4), nn.BatchNorm1d(b), nn.ELU())]
    return Built(
        nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(96, 35)), (torch.rand(B, 1, 8000),), {}
    )


class ConvNeXt(nn.Module):  # type: ignore[misc]
    """A wide convolution of each channel by itself, then an MLP over the channels, beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.each(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


def convnext(B: int) -> Built:
    layers = (nn.Conv2d(3, 64, 4, 4), ConvNeXt(64), ConvNeXt(64), nn.Conv2d(64, 128, 2, 2), ConvNeXt(128), ConvNeXt(128))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))
    return Built(nn.Sequential(*layers, *head).eval(), (torch.rand(B, 3, 64, 64),), {})


def translator(B: int, T: int) -> Built:
    model = nn.Transformer(160, 4, 2, 2, 480, 0.1, batch_first=True)
    return Built(model, (torch.rand(B, T, 160), torch.rand(B, T + 8, 160)), {})


class Critic(nn.Module):  # type: ignore[misc]
    """Two MLPs with layer norm and tanh over the same state, as in reinforcement learning; their smaller value counts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = self._one(width), self._one(width)

    @staticmethod
    def _one(width: int) -> nn.Module:
        layers = (nn.Linear(40, width), nn.LayerNorm(width), nn.Tanh(), nn.Linear(width, width), nn.ELU())
        return nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([state, action], -1)
        return torch.minimum(self.first(x), self.second(x))


def critic(B: int) -> Built:
    return Built(Critic(256), (torch.rand(B, 32), torch.rand(B, 8)), {})


@dataclass(frozen=True)
class Case:
    """A model at its sizes; `group` says what it is for."""

    name: str
    family: Family
    phase: str
    group: str


def _case(name: str, build: Callable[..., Built], phase: str, group: str, **sizes: int) -> Case:
    return Case(name, Family(name, build, sizes), phase, group)


def cases() -> list[Case]:
    """The targets; further models, which causes of errors were sought with; those held out, to which nothing was changed."""
    wide = gpt(B=8, T=96, D=256, N=4, L=4, V=1000)
    return [
        *(Case(f"lesson's GPT, training step, B = {b}", gpt(B=b), "train", "target") for b in (1, 8, 64)),
        *(_case(f"MLP 512-2048, B = {b}", mlp, "forward", "target", B=b) for b in (1, 32, 512)),
        _case("BERT, 4 layers, T = 128", bert, "forward", "target", B=1, T=128),
        _case("small ResNet, B = 8", resnet, "forward", "target", B=8),
        _case("LSTM, 2 layers", lstm, "forward", "target", B=8, T=32),
        Case("GPT of width 256, forward, B = 8", wide, "forward", "target"),
        _case("MLP, training step, B = 64", mlp, "train", "target", B=64),
        _case("ResNet, training step, B = 4", resnet, "train", "target", B=4),
        _case("nn.TransformerEncoder, forward", encoder, "forward", "target", B=8, T=64),
        _case("nn.TransformerEncoder, training step", encoder, "train", "further", B=8, T=64),
        _case("separable convolutions, forward", separable, "forward", "target", B=4),
        _case("separable convolutions, training step", separable, "train", "further", B=4),
        _case("Llama of width 128, training step", llama, "train", "further", B=4, T=64),
        _case("U-Net, training step", unet, "train", "further", B=4),
        _case("vision transformer, forward", patches, "forward", "further", B=4),
        _case("vision transformer, training step", patches, "train", "further", B=8),
        _case("GRU, training step", gru, "train", "further", B=8, T=24),
        _case("mixer, training step", mixer, "train", "further", B=8),
        _case("recommender, forward", recommender, "forward", "further", B=256),
        _case("1-D convolutions, training step", audio, "train", "further", B=8),
        _case("ConvNeXt, forward", convnext, "forward", "held out", B=4),
        _case("nn.Transformer, training step", translator, "train", "held out", B=4, T=24),
        _case("twin critics, training step", critic, "train", "held out", B=128),
    ]


# ---------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Result:
    """One case of one run: its seconds, and how close the estimate is."""

    case: str
    group: str
    measured: float
    estimate: float
    summary: Summary


def one_run(chosen: list[Case], chip: str, say: Callable[[str], None]) -> Iterator[Result]:
    """Every case on a calibrated chip, one after the other."""
    machine = load_chip(chip)
    for case in chosen:
        m = measure(case.family, machine, phase=case.phase)
        say(f"{case.name}: {m.measured * 1e3:.3g} ms, {m.summary.total_error:+.1%}")
        yield Result(case.name, case.group, m.measured, m.estimate, m.summary)
        gc.collect()


def calibrated(folder: str, tiny: bool, say: Callable[[str], None]) -> str:
    """A chip file of this machine; a tiny one knows a few operators at two sizes, and is good for nothing."""
    small = [Kernel(k.name, {a: g[:2] for a, g in k.axes.items()}, k.make) for k in kernels() if k.name in TINY]
    calibration, text = calibrating.calibrate(every=small if tiny else None)
    say(f"calibrated in {calibration.about['seconds']} s, noise {calibration.noise:.1%}")
    return str(write(text.encode(), Path(folder) / "machine.toml", force=True))


# --------------------------------------------------------------------------------------------------------------- table


def table(runs: list[list[Result]]) -> str:
    """Markdown: a line for each case, a column for each number, the runs one after the other in a cell."""
    lines = [
        "| model | measured | error of the estimate, total | median error per operator | within 10 %, 25 % |",
        "|---|---|---|---|---|",
    ]
    for same in zip(*runs, strict=True):
        first = same[0]
        star = "" if first.group == "target" else f" ({first.group})"
        cells = (
            f"{statistics.median(r.measured for r in same) * 1e3:.3g} ms",
            ", ".join(f"{r.summary.total_error:+.0%}" for r in same),
            ", ".join(f"{r.summary.median_error:.0%}" for r in same),
            ", ".join(f"{r.summary.within_10:.0%} {r.summary.within_25:.0%}" for r in same),
        )
        lines.append(f"| {first.case}{star} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdicts(runs: list[list[Result]]) -> list[str]:
    """What is worth saying of all runs: medians, worst cases, bounds, noise."""
    out = []
    for group in dict.fromkeys(r.group for r in runs[0]):
        each = [[r for r in run if r.group == group] for run in runs]
        middle, worst, inner = (
            ", ".join(f"{f([abs(getattr(r.summary, key)) for r in run]):.1%}" for run in each)
            for f, key in ((statistics.median, "total_error"), (max, "total_error"), (statistics.median, "median_error"))
        )
        out.append(f"{group}: error of the total {middle} in the median, {worst} in the worst; per operator {inner}")
    broken = [r.case for run in runs for r in run if r.summary.bound_violations]
    out.append(f"bounds broken in: {', '.join(dict.fromkeys(broken))}" if broken else "no bound was broken")
    busy = [f"{r.case} ({r.summary.loaded:+.0%})" for run in runs for r in run if not r.summary.verdict]
    noisy = [f"{r.case} ({r.summary.noise:.0%})" for run in runs for r in run if r.summary.noise > NOISY]
    if busy:
        out.append(f"NO VERDICT, with how much slower the machine was than when it was calibrated: {', '.join(busy)}")
    if noisy:
        out.append(f"NOISY: repeated steps spread: {', '.join(noisy)}")
    return out


# ------------------------------------------------------------------------------------------------------- command line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chip", metavar="FILE", default="", help="take this calibration instead of making one")
    parser.add_argument("--add", metavar="FILE", default="", help="keep the runs in this JSON file, and print all of them")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name or group contains this")
    parser.add_argument("--tiny", action="store_true", help="two cases and a tiny calibration: shows that it runs")
    parser.add_argument("--json", action="store_true", help="the last run as numbers: estimate over measured, by case")
    o = parser.parse_args()
    warnings.filterwarnings("ignore")
    say = lambda text: print(text, file=sys.stderr, flush=True)
    chosen = [c for c in cases() if o.only in c.name or o.only in c.group]
    if not chosen:
        parser.error(f"no case contains {o.only!r}")
    if o.tiny:
        chosen = [c for c in chosen if c.name in ("lesson's GPT, training step, B = 1", "MLP 512-2048, B = 1")]
    with tempfile.TemporaryDirectory() as folder:
        run = list(one_run(chosen, o.chip or calibrated(folder, o.tiny, say), say))
    runs = [run]
    if o.add:
        path = Path(o.add)
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        runs = [[Result(**{**r, "summary": Summary(**r["summary"])}) for r in old] for old in kept] + runs
        path.write_text(json.dumps([[asdict(r) for r in x] for x in runs], indent=1), encoding="utf-8")
    if o.json:
        print(json.dumps({r.case: r.estimate / r.measured for r in run}))
        return
    print(table(runs))
    print()
    print("\n".join(verdicts(runs)))


if __name__ == "__main__":
    main()

"""What a stage of a pipeline holds in memory at the least: what is there all the time, and what blocks keep of passes.

    parameters + optimizer state + gradients + micro-batches in flight * blocks of the stage * what a block keeps

By 1F1B the s-th of P stages, counted from 0, runs P - s forward passes before its first backward pass (arXiv 2104.04473), by
GPipe all M (arXiv 1811.06965). What is before and behind the blocks, and what operators hold while they run, come on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from costir.errors import CostirError
from costir.ir import Graph
from costir.memory_view import kept_by_layer
from costir.stages import bubble
from costir.symbolic import ZERO, Expr, apply, expand, size, total

if TYPE_CHECKING:
    from costir.analysis import Analysis


@dataclass(frozen=True)
class StageMemory:
    """Bytes that a device of a stage holds, as expressions in the sizes.

    Attributes:
        parameters: and buffers, there all the time. optimizer_state: too.
        gradients: there from the end of the first backward pass on; of fsdp whole ones, which are reduced after the last.
        gathered: whole weights of fsdp, all of which are there at the end of a backward pass; 0 without it.
        block: activations that one block keeps of one micro-batch for its backward pass.
        blocks: how many there are in the stage.
        behind: how many stages follow the first of this kind. micro_batches: of a step.
    """

    parameters: Expr
    optimizer_state: Expr
    gradients: Expr
    gathered: Expr
    block: Expr
    blocks: Expr
    behind: int
    micro_batches: int

    @property
    def in_flight(self) -> int:
        """Micro-batches of which activations are held at once, by 1F1B."""
        return min(self.micro_batches, self.behind + 1)

    def least(self, schedule: str = "1f1b") -> Expr:
        """What is held at the least at once; `schedule` is "1f1b" or "gpipe".

        Before a backward pass there are the activations of all micro-batches in flight, at its end those of all but one, the
        gradients, and what is gathered. Where there are more micro-batches than in flight, gradients are there before one, too.
        """
        held = self.in_flight if schedule == "1f1b" else self.micro_batches
        one = self.block * self.blocks
        always = self.parameters + self.optimizer_state + (held - 1) * one
        if self.micro_batches > held:
            return always + self.gradients + apply("max", [one, self.gathered])
        return always + apply("max", [one, self.gradients + self.gathered])


def stage_memory(analysis: Analysis) -> StageMemory:
    """What a stage holds.

    Raises:
        CostirError: it is no stage of a training step, or what its blocks keep is not known.
    """
    graph, found, whole = analysis.graph, bubble(analysis.graph), analysis.whole
    if found is None or whole is None or analysis.phase != "train":
        raise CostirError("what a stage holds is known of a training step's stages", "add --phase train, and leave out --keep")
    block, _ = kept_by_layer(whole.memory.parts["activations"], whole.sizes)
    if block is None:
        raise CostirError(
            "what a block keeps for the backward pass is not known as a formula", "leave out pp to see its memory"
        )
    behind = {"first stage": found.stages - 1, "middle stages": found.stages - 2}.get(graph.plan, 0)
    parameters = total(w.count * w.tensor.nbytes for w in graph.weights)
    blocks = size("L") / graph.mesh.length(graph.pipeline.axis) if graph.pipeline is not None else ZERO
    gathered = _gathered(analysis)
    gradients = gathered if gathered != 0 else _touched(graph, "grad")
    state = _touched(graph, "state")
    return StageMemory(expand(parameters), state, gradients, gathered, block, blocks, behind, found.micro_batches)


def _touched(graph: Graph, role: str) -> Expr:
    """Bytes of all tensors of a role that the optimizer works on, each once."""
    seen: dict[int, Expr] = {}
    for c in graph.calls:
        for t in c.inputs if c.phase == "optimizer" else ():
            if t.role == role:
                seen.setdefault(t.ref, c.count * t.nbytes)
    return expand(total(seen.values()))


def _gathered(analysis: Analysis) -> Expr:
    """Bytes of the whole weights that fully_shard gathers in a first forward pass; 0 without it."""
    data = {a for axes in analysis.graph.splits.values() for a in axes}
    nodes = analysis.costed.nodes
    if not any(n.call.op == "fsdp.copy_in.default" for n in nodes):
        return ZERO
    found = (n.call.count * t.payload for n in nodes if n.call.phase == "forward" for t in n.cost.transfers
             if t.kind == "all_gather" and set(t.axes) <= data)  # fmt: skip
    return expand(total(found))

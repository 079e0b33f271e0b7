"""Messages between a replica's stages in a step: tied gradients, norms, losses, and codecs' reports; their
phase is `control`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective, RankStep, Submission
from gradwire.harness.timing.trace.step import CONTROL


class StepFigures(NamedTuple):
    """The figures that all ranks of a replica share after a step: the norm of the whole model's gradient, the
    loss, and the bytes that each stage's codec reports, empty if none reports any."""

    norm: float
    loss: float
    reports: Sequence[Tensor]


def summing_ends(own: Tensor) -> Collective[Tensor]:
    """The coroutine that adds the gradients of a parameter shared by the first and the last stage, in that
    order, so that both get the same bits. Other stages take part without data."""

    async def run(comm: ScheduledCollectives) -> Tensor:
        stages = comm.group("stage").in_phase(CONTROL)
        last = stages.size - 1
        if stages.rank not in (0, last):
            return own
        other, peer = torch.empty_like(own), last - stages.rank
        await stages.send_and_receive({peer: own}, {peer: other})
        return own + other if stages.rank == 0 else other + own

    return run


def gathering_figures(report: Tensor, own: Tensor) -> Collective[tuple[list[Tensor], list[Tensor]]]:
    """The coroutine that gathers each stage's figures on all stages, and their reports if any stage has
    one.
    """

    async def run(comm: ScheduledCollectives) -> tuple[list[Tensor], list[Tensor]]:
        stages = comm.group("stage").in_phase(CONTROL)
        rows = await stages.all_gather(own)
        lengths = [int(row[-1]) for row in rows]
        if not any(lengths):
            return rows, []
        # Messages must not be empty, so a stage with nothing to report sends one byte.
        sizes = [max(1, length) for length in lengths]
        sent = (
            report.to(own.device) if report.numel() else torch.zeros(1, dtype=torch.uint8, device=own.device)
        )
        reports = await stages.all_gather(sent, sizes)
        return rows, [found[:length] for found, length in zip(reports, lengths, strict=True)]

    return run


async def agree(squares: Tensor, loss: Tensor, report: Tensor, rank_step: RankStep) -> StepFigures:
    """Adds the stages' sums of squares, (1,) float64 each, in stage order; the loss is the last stage's. Each
    stage's codec may `report` numbers, (length,) uint8. All ranks must call it."""
    own = torch.cat([squares, loss.view(1), squares.new_tensor([report.numel()])])
    rows, reports = await rank_step.start(
        partial(gathering_figures, report), own, Submission(buffers="norm", coordinates=1, is_own=True)
    )
    total = sum(float(row[0]) for row in rows)
    return StepFigures(total**0.5, float(rows[-1][1]), reports)


def start_nothing(rank_step: RankStep, count: int, device: torch.device) -> None:
    """Starts `count` collectives that do nothing: all ranks must start the same number, however many buckets
    their stages have."""
    for _ in range(count):
        rank_step.start(
            _nothing, torch.empty(0, device=device), Submission(buffers="none", coordinates=0, is_own=True)
        )


def _nothing(own: Tensor) -> Collective[None]:
    async def run(comm: ScheduledCollectives) -> None:
        return None

    return run

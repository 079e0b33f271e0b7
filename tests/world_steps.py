"""Steps of nothing but collectives, for tests of what runs in a world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradwire.harness.comm.world.interface import Collective, RankProgram, RankStep, Submission, World


def run_collectives(
    world: World, collectives: Mapping[int, Sequence[Collective[Any]]], step: int = 0, coordinates: int = 1
) -> dict[int, list[Any]]:
    """Each rank's results; the ranks start the same number of collectives, all of them at once."""

    def program(rank: int) -> RankProgram[list[Any]]:
        async def run(rank_step: RankStep) -> list[Any]:
            started = [
                rank_step.start(
                    lambda _, collective=collective: collective,
                    torch.empty(0),
                    Submission(buffers="test", coordinates=coordinates, is_own=True),
                )
                for collective in collectives[rank]
            ]
            return [await each for each in started]

        return run

    return dict(world.run_step(step, {rank: program(rank) for rank in world.ranks}).results)

"""`summary.json` of `task=simulate`: how many rounds there is time for, and what communication costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradwire.harness.network.configured import recorded_text
from gradwire.harness.record.summary import Stored


@dataclass(frozen=True)
class SimulateSummary(Stored):
    """All is modelled. Waits and overlap are means over complete rounds, the first left out: it waits for
    nothing. Null: nothing was sent, or there are too few rounds."""

    scheme: str
    bits: int | None  # of every value, where they are fixed
    floor: float | None
    workers: int
    blocks: list[list[float]]  # parameters, seconds of the forward and of the backward pass; forward order
    split: int | None  # of ResNet50; null: network.blocks
    seconds: float
    network: str  # in words
    network_settings: dict[str, Any]
    rate_mbit: float
    rounds: int  # that all workers have completed
    utilization: float | None  # bytes that came in over what the workers' links could have carried
    t_wait: float | None  # mean wait in a round, over the mean computation in one
    wait_s: float | None  # of the worker that waits longest in a round
    overlap_s: float | None  # of the worker with the least in a round: it computes, and something is sent
    row: float | None  # mean overlap_s over mean wait_s
    osf: float | None  # of the worker with the least in a round
    compute_s: float | None  # of a round, mean over workers
    round_s: float | None
    q_ratio_first: float | None  # bits over 32 for each value, after the first stage; mean over rounds
    q_ratio: float | None  # at last
    least_bits: int | None  # of any value in the first stage
    bytes_sent: float  # by all workers; what a switch copies counts once
    phases: list[dict[str, Any]]  # one for each rate that the links have: `figures.Phase`
    series: dict[str, list[float | None]]  # by complete round: end_s, wait_s, overlap_s, q_ratio_first, …
    seed: int
    provenance: dict[str, Any]

    @property
    def network_text(self) -> str:
        """Its links and that its times are modelled, in words, whatever version wrote `network`."""
        return recorded_text(self.network_settings, "modelled")

    def impossible(self) -> str | None:
        return None if self.rounds >= 0 else "has fewer than no rounds"

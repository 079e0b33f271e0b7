"""`summary.json` of `task=simulate`: rounds in the given time, and the cost of communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from gradwire.harness.network.configured import recorded_text
from gradwire.harness.record.directory import SUMMARY
from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord


@dataclass(frozen=True)
class SimulateSummary(StudyRecord):
    """All is modelled. Waits and overlap are means over complete rounds, the first left out: it waits for
    nothing. Null: nothing was sent, or there are too few rounds."""

    file: ClassVar[str] = SUMMARY

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
    # that all workers have completed
    rounds: Annotated[int, Figure("rounds", "modelled")]
    # bytes that came in over what the workers' links could have carried
    utilization: Annotated[float | None, Figure("utilization", "modelled")]
    # mean wait in a round, over the mean computation in one
    t_wait: Annotated[float | None, Figure("t_wait", "modelled")]
    # of the worker that waits longest in a round
    wait_s: Annotated[float | None, Figure("wait_s", "modelled")]
    # of the worker with the least in a round: it computes, and something is sent
    overlap_s: Annotated[float | None, Figure("overlap_s", "modelled")]
    # mean overlap_s over mean wait_s
    row: Annotated[float | None, Figure("row", "modelled")]
    # of the worker with the least in a round
    osf: Annotated[float | None, Figure("osf", "modelled")]
    # of a round, mean over workers
    compute_s: Annotated[float | None, Figure("compute_s", "modelled")]
    round_s: float | None
    # bits over 32 for each value, after the first stage; mean over rounds
    q_ratio_first: Annotated[float | None, Figure("q_ratio_first", "modelled")]
    # at last
    q_ratio: Annotated[float | None, Figure("q_ratio", "modelled")]
    # of any value in the first stage
    least_bits: Annotated[int | None, Figure("least_bits", "modelled")]
    bytes_sent: float  # by all workers; what a switch copies counts once
    phases: list[dict[str, Any]]  # one for each rate that the links have: `figures.Phase`
    series: dict[str, list[float | None]]  # by complete round: end_s, wait_s, overlap_s, q_ratio_first, …
    seed: int
    provenance: dict[str, Any]

    @property
    def network_text(self) -> str:
        """Its links and that its times are modelled, in words, whatever version wrote `network`."""
        return recorded_text(self.network_settings, "modelled")

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """Those of fields, and the ratios at each rate that the links have: a case each."""
        yield from super().figures(content)
        for phase in content["phases"] if len(content["phases"]) > 1 else ():
            case = f"{phase['factor']:g} from {phase['from_s']:g} s"
            for key in ("q_ratio_first", "q_ratio", "followed_after"):
                yield from Figure(key, "modelled").values(phase[key], content, case)

    def impossible(self) -> str | None:
        return None if self.rounds >= 0 else "has fewer than no rounds"


RECORD = SimulateSummary

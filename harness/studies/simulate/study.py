"""`task=simulate`: its settings and its record, `summary.json`, with figures of rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from gradwire.codecs.fields import above, at_least, between, one_of
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.network.configured import recorded_text
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.record.directory import SUMMARY
from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.studies.study import Study
from gradwire.harness.tracking.settings import TrackingConfig

SCHEMES = ("aqgb", "fixed", "none", "ideal")
"""Ways of sending gradients: at a ratio that follows the network; with a fixed number of bits; in full; in no
time."""

USUAL_BITS, USUAL_FLOOR, USUAL_MARGIN_S, USUAL_GAIN = 4, 0.125, 0.02, 0.3
"""The values that null stands for. Floor and bits are the paper's (§4.4, §5.1.1), margin and gain are this
project's."""

SPLITS = (1, 3, 4, 5, 6)
"""The supported numbers of blocks of ResNet50 (AQGB §5.2.6)."""

USUAL_SPLIT = 4


@dataclass(frozen=True)
class SimulateConfig:
    """The settings of simulated rounds of training by blocks."""

    scheme: str = one_of(*SCHEMES)
    bits: int | None = between(1, 32, None)  # fixed: of every value; null: 4
    # aqgb: the least ratio, 0.125 for 4 of 32 bits; null: 0.125
    floor: float | None = between(2 / 32, 1, None)
    # aqgb: seconds before its deadline when a block's refinement ends; null: 0.02
    margin_s: float | None = at_least(0, None, 60.0)
    # aqgb: weight of the newest in moving averages; null: 0.3
    gain: float | None = between(0, 1, None, low_included=False)
    seconds: float = above(0, 200.0, 86_400.0)  # of training
    # ResNet50 in 1, 3, 4, 5 or 6 blocks; null: 4, or network.blocks
    split: int | None = between(min(SPLITS), max(SPLITS), None)
    # values: a newer block waits for the end of the partition that is being sent
    partition: int = at_least(1, 1024, 1 << 30)


@dataclass(frozen=True, kw_only=True)
class SimulateTask(RecordedConfig):
    """A training that is simulated, not run."""

    simulate: SimulateConfig
    cluster: ClusterConfig
    network: NetworkConfig
    tracking: TrackingConfig


@dataclass(frozen=True)
class SimulateSummary(StudyRecord):
    """The figures of a simulated training, all modelled. Waits and overlap are means over complete rounds,
    except the first, which does not wait. Null if nothing was sent, or if there are too few rounds."""

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
    rounds: Annotated[int, Figure("rounds", "modelled", column=1)]
    # bytes that came in over what the workers' links could have carried
    utilization: Annotated[float | None, Figure("utilization", "modelled", column=2)]
    # mean wait in a round, over the mean computation in one
    t_wait: Annotated[float | None, Figure("t_wait", "modelled", column=3)]
    # of the worker that waits longest in a round
    wait_s: Annotated[float | None, Figure("wait_s", "modelled")]
    # of the worker with the least in a round: it computes, and something is sent
    overlap_s: Annotated[float | None, Figure("overlap_s", "modelled")]
    # mean overlap_s over mean wait_s
    row: Annotated[float | None, Figure("row", "modelled", column=4)]
    # of the worker with the least in a round
    osf: Annotated[float | None, Figure("osf", "modelled", column=5)]
    # of a round, mean over workers
    compute_s: Annotated[float | None, Figure("compute_s", "modelled")]
    round_s: float | None
    # bits over 32 for each value, after the first stage; mean over rounds
    q_ratio_first: Annotated[float | None, Figure("q_ratio_first", "modelled", column=6)]
    # at last
    q_ratio: Annotated[float | None, Figure("q_ratio", "modelled", column=7)]
    # of any value in the first stage
    least_bits: Annotated[int | None, Figure("least_bits", "modelled")]
    bytes_sent: float  # by all workers; what a switch copies counts once
    phases: list[dict[str, Any]]  # one for each rate that the links have: `figures.Phase`
    series: dict[str, list[float | None]]  # by complete round: end_s, wait_s, overlap_s, q_ratio_first, …
    seed: int
    provenance: dict[str, Any]

    @property
    def network_text(self) -> str:
        """Its links and the note that its times are modelled, in words, for any version of `network`."""
        return recorded_text(self.network_settings, "modelled")

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """The figures of the fields, and the ratios, with a case for each rate of the links."""
        yield from super().figures(content)
        for phase in content["phases"] if len(content["phases"]) > 1 else ():
            case = f"{phase['factor']:g} from {phase['from_s']:g} s"
            for key in ("q_ratio_first", "q_ratio", "followed_after"):
                yield from Figure(key, "modelled").values(phase[key], content, case)

    def impossible(self) -> str | None:
        return None if self.rounds >= 0 else "has fewer than no rounds"


STUDY = Study(
    SimulateTask,
    SimulateSummary,
    "gradwire.harness.studies.simulate.task",
    "gradwire.harness.studies.simulate.compare",
)

"""The settings of `task=simulate`."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.fields import above, at_least, between, one_of
from gradwire.harness.tracking.settings import TrackingConfig

SCHEMES = ("aqgb", "fixed", "none", "ideal")
"""How gradients are sent: at a ratio that follows the network; all in so many bits; in full; in no time."""

USUAL_BITS, USUAL_FLOOR, USUAL_MARGIN_S, USUAL_GAIN = 4, 0.125, 0.02, 0.3
"""What stands for null; the floor and the bits are the paper's (§4.4, §5.1.1), margin and gain our own."""

SPLITS = (1, 3, 4, 5, 6)
"""Into how many blocks ResNet50 is split (AQGB §5.2.6)."""

USUAL_SPLIT = 4


@dataclass(frozen=True)
class SimulateConfig:
    """Rounds of training by blocks."""

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

"""`summary.json` of a replay: what one codec did to one file of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradwire.harness.record.summary import Stored


@dataclass(frozen=True)
class ReplaySummary(Stored):
    """The figures of one codec, topology and number of workers on one file of gradients."""

    # Error, over all coordinates together.
    vnmse_mean: float | None  # mean over the repeats, no unit; null if it has no value in one of them
    vnmse_std: float | None  # standard deviation over the repeats (n - 1); null for one repeat
    vnmse_min: float | None
    vnmse_max: float | None
    vnmse: list[float | None]  # one per repeat, in the order of their seeds
    super_group_errors: list[float]  # quantiles 0, 1, …, 100 % over super-groups: squared error / energy

    # Bytes, as counted by the transport, in one synchronization.
    wire_bits_per_coordinate: float | None  # bits; null if nothing is counted
    wire_bits_by_phase: dict[str, float]  # the same split: metadata, reduce_scatter, all_gather
    bytes_sent_per_rank: list[int]

    # Against reverse water-filling over the variances of super-groups.
    yardstick_vnmse: float | None  # the least error at these wire bits
    db_above_yardstick: float | None  # 10 log10(vnmse_mean / yardstick_vnmse)
    yardstick_curve: list[
        float
    ]  # the least error at 0, 1, 2, …, 16 bits per coordinate; empty without a bound

    # Time.
    codec_s: float  # s, median over the repeats: the codec's work in one synchronization, busiest rank
    codec_ns_per_coordinate: float  # the same per coordinate

    # What ran.
    repeats: int
    rounds: int  # synchronizations in a repeat; the last one is measured
    seed: int  # of the first repeat; the others use the next ones
    workers: int
    num_coordinates: int
    num_buckets: int
    logged: dict[str, float]  # what the codec logged in the last repeat
    gradients: dict[str, Any]  # the file's name and hash, and what it says of itself
    kernel_backend: str
    config_hash: str
    code_hash: str
    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    machine: dict[str, Any]

    def impossible(self) -> str | None:
        if not self.bytes_sent_per_rank or min(self.repeats, self.workers) < 1:
            return "has no repeats, workers or bytes"
        return None

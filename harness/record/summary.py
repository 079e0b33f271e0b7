"""`summary.json`: what a finished run reports, one number per question."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gradwire.harness.files.finite_json import dumps, restored
from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.structured import parse_json
from gradwire.harness.files.typed import made

REMEDY = "resume=never runs it again"
"""What to do about a damaged record."""

Clock = Literal["wall", "simulated"]
"""Which clock the times are on: measured, or measured compute and codec times plus a network model's."""


@dataclass(frozen=True)
class Summary:
    """A run's figures, of the whole run (resumed parts included), the maximum over ranks where these differ.

    Steps on which the error was measured are left out of `rounds_per_second` and of the breakdown, unless
    all were.
    """

    # The result.
    metric: str  # the evaluation metric, a key of every row of evals.jsonl: "perplexity", "accuracy"
    final_metric: float  # its value at the last evaluation
    tta: dict[str, dict[str, Any]]  # target -> {train_time_s ("inf" if missed), step, stays (null if missed)}
    vnmse_mean: float | None  # mean over the measured steps, no unit; null when none was measured

    # Time.
    clock: Clock  # what every time below but wall_time_s is on
    train_time_s: float  # s, the training clock: evaluation, checkpoints and error measurement excluded
    wall_time_s: float  # s, everything
    rounds_per_second: float  # 1/s, 1 / mean step time on the training clock
    compute_s: float | None  # s per step: forward, backward, optimizer
    compression_s: float | None  # s per step: codec work not hidden by computation
    exposed_comm_s: float | None  # s per step: bytes in flight and nothing else going on
    other_s: float | None  # s per step: the rest; the four sum to the mean step; all null without spans

    # Bytes, as counted by the transport.
    bytes_sent_per_rank: list[int]  # bytes each rank sent in the whole run, in rank order
    bytes_by_phase: dict[str, int]  # bytes all ranks sent, by phase: metadata, reduce_scatter, ...
    wire_bits_per_coordinate: float | None  # bits; null when nothing is sent (n = 1) or counted (backend)

    # What ran.
    seed: int
    steps: int  # optimizer steps
    workers: int  # data-parallel ranks
    kernel_backend: str  # the implementation of the codecs' kernels that ran: "default", "cpu", "cuda"
    config_hash: str  # of the settings that change the result: the run's id
    code_hash: str  # of the sources
    commit: str | None  # git commit; null outside a repository
    dirty: bool | None  # whether the sources differed from the commit; null outside a repository
    versions: dict[str, str] = field(default_factory=dict)  # package -> version
    machine: dict[str, Any] = field(default_factory=dict)  # processor, accelerators, ...; no host name

    # What was trained on what.
    num_coordinates: int = 0  # coordinates synchronized per step
    skipped_steps: int | None = None  # steps without an update, gradients not finite; null in old records
    layout_hash: str = ""  # of the buckets: names, shapes, order
    resumed_after: list[int] = field(default_factory=list)  # steps after which the run was continued
    earlier_ends: list[str] = field(default_factory=list)  # why each attempt before the last one ended
    data: dict[str, Any] = field(default_factory=dict)  # corpus, sha256, tokens, unigram perplexity, ...

    # How well communication hides behind computation (AQGB); all null without spans, and at n = 1.
    overlap_s: float | None = None  # s per step: a rank computes with bytes in flight; the least of the ranks
    wait_s: float | None = None  # s per step: from the last gradient to the update; the longest of the ranks
    row: float | None = None  # overlap_s / wait_s; "inf" when nobody waits
    osf: float | None = None  # computation / (computation + communication it does not hide), at most 1
    utilization: float | None = None  # what the busiest rank sent / what its link could have carried, of 1;
    # null where links are not limited, not all alike, or change; of what is multicast every copy counts

    # Only where they exist.
    wire_bits_by_level: dict[str, float] = field(default_factory=dict)  # two-level topologies: level -> bits
    weight_error: float | None = None  # sharded runs: |w_main - w_model|^2 / |w_main|^2, no unit
    trace_of: str | None = None  # task=retime: the id of the run whose trace this is

    @property
    def has_breakdown(self) -> bool:
        """Whether the parts of a step are known: they are not where spans were not recorded."""
        return None not in (self.compute_s, self.compression_s, self.exposed_comm_s, self.other_s)

    @property
    def has_bytes(self) -> bool:
        """Whether the bytes sent were counted: they are not where the backend sends by itself."""
        return self.wire_bits_per_coordinate is not None or self.workers == 1

    def to_json(self) -> str:
        """Valid JSON, indented for readers; numbers that are not finite as in `finite_json`."""
        return dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Summary:
        """The summary in the file at `path`; raises UnusableFileError."""
        return cls.from_json(read_text(path, remedy=REMEDY, inside=path.parent), path)

    @classmethod
    def from_json(cls, text: str, path: str | Path = "summary.json") -> Summary:
        """Reads `to_json`'s text; unknown keys (of newer records) are skipped.

        Raises UnusableFileError, which says that it was read from `path`, for text of another form, keys that
        are missing and values that no run has.
        """
        values = restored(parse_json(text.encode(), path, remedy=REMEDY))
        summary = made(cls, values, path, remedy=REMEDY)
        reason = _impossible(summary)
        if reason is not None:
            raise UnusableFileError(path, reason, REMEDY)
        return summary


def _impossible(summary: Summary) -> str | None:
    """What of a summary no run can have."""
    if min(summary.steps, summary.workers) < 1:
        return f"has {summary.steps} steps of {summary.workers} workers"
    if not summary.rounds_per_second > 0:
        return f"has rounds_per_second={summary.rounds_per_second}"
    if len(summary.bytes_sent_per_rank) != summary.workers:
        return f"has bytes_sent_per_rank of {len(summary.bytes_sent_per_rank)} workers, not {summary.workers}"
    return None

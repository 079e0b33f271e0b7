"""`summary.json`, the figures of a finished run, and the base class of such files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal, Self

from gradwire.harness.files.finite_json import dumps, restored
from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.structured import parse_json
from gradwire.harness.files.typed import made
from gradwire.harness.timing.measure.metric import Kind
from gradwire.harness.timing.measure.metrics import METRICS, PARTS

REMEDY = "resume=never runs it again"
"""The remedy for a damaged record."""

PERCENTILES = {"p10": 0.1, "p90": 0.9}
"""The percentiles that accompany a mean over steps."""

SPREAD = ("step_time_s", "compute_s", "compression_s", "exposed_comm_s")
"""The times of a step whose percentiles are in a summary."""

Clock = Literal["wall", "simulated"]
"""The clock of the times: real time, or measured compute and codec times with a network model."""


class Stored:
    """A dataclass that is kept as a JSON file of a record, a key for each field."""

    remedy: ClassVar[str] = REMEDY
    """The remedy for a damaged file, with which every error ends."""

    def content(self) -> dict[str, Any]:
        """The object in the file."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def arguments(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """The constructor's arguments by name, from the result of `content()`."""
        return content

    def impossible(self) -> str | None:
        """A description of values that no record can have; None if there are none."""
        return None

    def to_json(self) -> str:
        """Valid JSON, indented for readability; non-finite numbers are written as in `finite_json`."""
        return dumps(self.content(), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the file at `path`; raises UnusableFileError."""
        return cls.from_json(read_text(path, remedy=cls.remedy, inside=path.parent), path)

    @classmethod
    def from_json(cls, text: str, path: str | Path = "summary.json") -> Self:
        """Reads `to_json`'s text; unknown keys (of newer records) are skipped.

        Raises UnusableFileError, naming `path`, for text of another form, missing keys and impossible values.
        """
        content = restored(parse_json(text.encode(), path, remedy=cls.remedy))
        found = made(cls, cls.arguments(content), path, remedy=cls.remedy)
        reason = found.impossible()
        if reason is not None:
            raise UnusableFileError(path, reason, cls.remedy)
        return found


@dataclass(frozen=True)
class Summary(Stored):
    """A run's figures, of the whole run (resumed parts included), the maximum over ranks where these differ.

    Steps in which the error was measured are excluded from `rounds_per_second` and from the breakdown, unless
    all steps were measured.
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
    # 1/s, of all ranks by the same steps; null where rows are no packed text, and in old records
    tokens_per_s: float | None = field(default=None, kw_only=True)
    figures: dict[str, float | None]
    """Per step, by the keys of METRICS, which are keys of the file: compute_s, ..., overlap_s, row, osf.

    Null without spans; figures of overlap are also null for one worker. `utilization` is null if links are
    not limited, not all alike, or change their rates; every copy of a multicast message counts. Observations
    of processes and the machine (`cpu_pressure`, ...) are absent if not known.
    """
    # a time's key -> {"p10", "p90"} over steps, s; without those that are not known, and in old records
    spread: dict[str, dict[str, float]] = field(default_factory=dict, kw_only=True)

    # Bytes, as counted by the transport.
    bytes_sent_per_rank: list[int]  # bytes each rank sent in the whole run, in rank order
    bytes_by_phase: dict[str, int]  # bytes all ranks sent, by phase: metadata, reduce_scatter, ...
    wire_bits_per_coordinate: float | None  # bits; null when nothing is sent (n = 1) or counted (backend)
    # the same inside nodes ("local") and between them ("node"), their sum; null with one node
    wire_bits_by_level: dict[str, float] | None = field(default=None, kw_only=True)

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

    workers_per_machine: int | None = None  # null on a simulated clock, and in old records
    trace_of: str | None = None  # task=retime: the id of the run whose trace this is
    # the calibrated profile that a simulated clock counted: where it came from, digests of its parts, its
    # spread, how many pieces of work it lacked; null: what each step took counted
    profile: dict[str, Any] | None = None
    # rounds in CUDA graphs: of how many `buckets` they are `captured`, and the number of others by the reason
    # (`refused`); `spans_every`: in one step of so many their work is timed, by `marks` events, which add
    # `marks_share` to their time there; `recaptured`: how often with other sizes; null on CPUs and simulated
    # clocks, and in old records
    captured: dict[str, Any] | None = None
    kind: Kind | None = None  # of the times: measured, emulated or modelled; null in old records

    @property
    def has_breakdown(self) -> bool:
        """True if the parts of a step are known, i.e. if spans were recorded."""
        return all(self.figures.get(part) is not None for part in PARTS)

    @property
    def has_bytes(self) -> bool:
        """True if the sent bytes were counted; they are not if the backend itself sends them."""
        return self.wire_bits_per_coordinate is not None or self.workers == 1

    def values(self) -> dict[str, float]:
        """The known figures of the whole run, by the keys of METRICS, in their order."""
        parts = {} if self.has_breakdown else dict.fromkeys(PARTS)
        sent = fmean(self.bytes_sent_per_rank) / self.steps if self.has_bytes else None
        by_level = self.wire_bits_by_level or {}
        found = {
            **asdict(self),
            **self.figures,
            **parts,
            "step_time_s": 1 / self.rounds_per_second,
            "vnmse": self.vnmse_mean,
            "bytes_per_step_per_rank": sent,
            **{f"wire_bits_by_level.{level}": bits for level, bits in by_level.items()},
        }
        return {key: found[key] for key in METRICS if found.get(key) is not None}

    def content(self) -> dict[str, Any]:
        values = dict[str, Any]()
        for key, value in super().content().items():
            values |= value if key == "figures" else {key: value}
        return values

    @classmethod
    def arguments(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        fields = cls.__dataclass_fields__
        figures = {key: value for key, value in content.items() if key in METRICS and key not in fields}
        return {**content, "figures": figures}

    def impossible(self) -> str | None:
        if min(self.steps, self.workers) < 1:
            return f"has {self.steps} steps of {self.workers} workers"
        if not self.rounds_per_second > 0:
            return f"has rounds_per_second={self.rounds_per_second}"
        if len(self.bytes_sent_per_rank) != self.workers:
            return f"has bytes_sent_per_rank of {len(self.bytes_sent_per_rank)} workers, not {self.workers}"
        return None

"""One table of metrics: what each figure of a record is, how it comes about, and how it is shown.

A new metric is one entry of `METRICS` and the code that computes it: `rank_figures` where it follows from a
rank's spans, `trainer/steplog.py` or `trainer/summarize.py` elsewhere. Rows, summaries, comparisons, plots,
wandb and the table in docs/measurement.md read the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

Place = Literal["step", "evaluation", "summary"]
"""`steps.jsonl`, `evals.jsonl`, and a record's `summary.json`, `allreduce.json`, `bench.json` or
`scores.json`."""

Ranks = Literal["mean", "max", "min", "sum", "slowest"]
"""How the figures of all ranks become the step's; `slowest`: that of the rank whose step is longest."""

Better = Literal["lower", "higher"]

Kind = Literal["measured", "emulated", "modelled"]
"""Real processes and links; real processes on links that are slowed down; the simulated clock."""

Section = Literal["result", "step", "overlap", "bytes", "operation", "gradients"]
"""A table: of a comparison of runs, of the benchmark, or of what gradients look like."""

RUN_SECTIONS: tuple[Section, ...] = ("result", "step", "overlap", "bytes")


@dataclass(frozen=True)
class Spread:
    """One figure over seeds, rounds or blocks."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Shown:
    """How tables and plots write a figure: its unit there, the factor to it, significant digits.

    With `decimals` it has so many digits after the point instead.
    """

    unit: str = ""
    factor: float = 1.0
    digits: int = 4
    decimals: int | None = None


PLAIN, SHORT, PERCENT = Shown(), Shown(digits=3), Shown("%", 100, 3)
MILLISECONDS, MEGABYTES = Shown("ms", 1e3, 3), Shown("", 1e-6)
FULL_MILLISECONDS, FULL_PERCENT, NATS = Shown("ms", 1e3), Shown("%", 100), Shown("nats")


@dataclass(frozen=True)
class Metric:
    """One metric; `unit` is that of the record, empty where there is none."""

    key: str  # in rows, summaries and the results frame
    label: str  # in tables and plots; wandb shows the key
    unit: str
    meaning: str
    places: tuple[Place, ...] = ()
    ranks: Ranks | None = None  # None: all ranks have the same value, or it is the run's
    better: Better | None = None
    timed: bool = False  # read off the training clock: modelled where that is simulated
    spans: bool = False  # from `rank_figures`: null where spans are not recorded
    mean: bool = False  # the summary has the mean over steps, those of measured errors left out
    peers: bool = False  # the summary has it where there are several workers
    section: Section | None = None
    plot: Literal["training", "parts"] | None = None  # a panel over steps; a part of the stacked step
    shown: Shown = PLAIN
    in_words: str = ""  # in sentences, where that is not the label

    @property
    def heading(self) -> str:
        """The head of its column, the unit included."""
        return f"{self.label} [{self.shown.unit}]" if self.shown.unit else self.label

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return self.in_words or self.label

    def kind(self, run: Kind) -> Kind:
        """What its value is in a run of kind `run`: losses, errors and bytes do not depend on the clock."""
        return run if self.timed else "measured"


def _time(key: str, label: str, meaning: str, **about: Any) -> Metric:
    """Seconds of a step, from the ranks' spans."""
    usual: dict[str, Any] = {"timed": True, "spans": True, "shown": MILLISECONDS}
    return Metric(key, label, "s", meaning, **usual | {"places": ("step", "summary"), "mean": True} | about)


def _part(key: str, label: str, meaning: str, **about: Any) -> Metric:
    """One of the four parts that sum to the step."""
    about |= {"ranks": "slowest", "better": "lower", "section": "step", "plot": "parts"}
    return _time(key, label, meaning, **about)


def _hiding(key: str, label: str, unit: str, meaning: str, **about: Any) -> Metric:
    """How well communication hides behind computation (AQGB)."""
    return Metric(key, label, unit, meaning, timed=True, section="overlap", **{"shown": SHORT} | about)


STEP: tuple[Place, ...] = ("step",)
EVALUATION: tuple[Place, ...] = ("evaluation",)
SUMMARY: tuple[Place, ...] = ("summary",)

_TRAINING = (
    Metric(
        *("loss", "loss", "nats", "cross-entropy per predicted token or label, mean over the ranks' batches"),
        places=STEP + EVALUATION,
        ranks="mean",
        better="lower",
    ),
    Metric("perplexity", "perplexity", "", "exp of the held-out loss", EVALUATION, better="lower"),
    Metric(
        "accuracy", "accuracy", "", "share of held-out examples that are right", EVALUATION, better="higher"
    ),
    Metric(
        *("matthews", "Matthews correlation", "", "of predicted and true labels, −1 to 1", EVALUATION),
        better="higher",
    ),
    Metric(
        "final_metric", "final metric", "", "the metric at the last evaluation", SUMMARY, section="result"
    ),
    Metric(
        *("train_time_s", "training clock", "s", "without evaluations, checkpoints and measured errors"),
        places=STEP + EVALUATION + SUMMARY,
        ranks="max",
        better="lower",
        timed=True,
    ),
    Metric("wall_time_s", "wall clock", "s", "everything", EVALUATION + SUMMARY, better="lower"),
    Metric("lr", "learning rate", "", "of the step's update", STEP, plot="training"),
    Metric(
        "grad_norm", "gradient norm", "", "of the mean gradient, before it is clipped", STEP, plot="training"
    ),
    Metric(
        *("skipped_steps", "steps skipped", "", "steps without an update, their gradients not finite"),
        places=SUMMARY,
        better="lower",
        section="result",
    ),
)

_TIMES = (
    Metric(
        *("step_time_s", "step", "s", "of the slowest rank"),
        places=STEP,
        ranks="slowest",
        better="lower",
        timed=True,
        section="step",
        shown=MILLISECONDS,
    ),
    _part("compute_s", "compute", "forward, backward, optimizer"),
    _part("compression_s", "compression", "codec work that computation does not hide"),
    _part(
        *("exposed_comm_s", "exposed comm", "bytes in flight and nothing else going on"),
        in_words="exposed communication",
    ),
    _part("other_s", "other", "the rest of the step"),
    Metric(
        *("rounds_per_second", "steps/s", "1/s", "one over the mean step"),
        places=SUMMARY,
        better="higher",
        timed=True,
        section="step",
        shown=SHORT,
    ),
    _time("comm_s", "communicating", "bytes in flight", places=STEP, ranks="max", mean=False),
    _hiding(
        *("overlap_s", "computing while sending", "s", "a rank computes with bytes in flight"),
        places=STEP + SUMMARY,
        ranks="min",
        better="higher",
        spans=True,
        mean=True,
        peers=True,
        shown=MILLISECONDS,
    ),
    _hiding(
        *("wait_s", "waiting for gradients", "s", "from the last gradient to the update"),
        places=STEP + SUMMARY,
        ranks="max",
        better="lower",
        spans=True,
        mean=True,
        peers=True,
        shown=MILLISECONDS,
    ),
    _hiding(
        *("row", "ROW", "", "computing while sending over waiting, their means; inf when nobody waits"),
        places=SUMMARY,
        better="higher",
    ),
    _hiding(
        *("osf", "OSF", "", "computation over itself and the communication that it does not hide"),
        places=STEP + SUMMARY,
        ranks="min",
        better="higher",
        spans=True,
        mean=True,
        peers=True,
    ),
    _hiding(
        *("utilization", "link used", "", "what the busiest rank sent over what its link could have carried"),
        places=SUMMARY,
        shown=PERCENT,
    ),
)

_BYTES = (
    Metric(
        *("vnmse", "vNMSE", "", "squared error of the codec's mean over the energy of the exact one"),
        places=STEP,
        better="lower",
        section="bytes",
        shown=SHORT,
    ),
    Metric(
        *(
            "zeroed_share",
            "turned to 0",
            "",
            "of the exact mean's coordinates that are not 0 (parallel=sharded)",
        ),
        places=STEP,
        better="lower",
        shown=PERCENT,
    ),
    Metric(
        *("weight_error", "weight error", "", "norm of main less model weights over that of the main ones"),
        places=STEP,
        better="lower",
        shown=SHORT,
    ),
    Metric("bytes_sent", "sent", "B", "by all ranks together", STEP, "sum", "lower"),
    Metric(
        *("wire_bits_per_coordinate", "wire bits per coordinate", "bit", "of an encoded gradient"),
        places=STEP + SUMMARY,
        better="lower",
        section="bytes",
    ),
    *(
        Metric(
            *(f"wire_bits_by_level.{level}", f"wire bits {where}", "bit", f"the part {where}, if several"),
            places=STEP + SUMMARY,
            better="lower",
            section="bytes",
        )
        for level, where in (("local", "inside nodes"), ("node", "between nodes"))
    ),
    Metric(
        *("bytes_per_step_per_rank", "MB sent per step and rank", "B", "mean over ranks and steps"),
        better="lower",
        section="bytes",
        shown=MEGABYTES,
    ),
)


def _speed(key: str, label: str, unit: str, meaning: str, better: Better | None, **about: Any) -> Metric:
    """A figure of one benchmarked operation."""
    return Metric(
        key, label, unit, meaning, SUMMARY, None, better, section="operation", **{"shown": SHORT} | about
    )


def _gradients(key: str, label: str, unit: str, meaning: str, shown: Shown = PLAIN) -> Metric:
    """What saved gradients look like, by the dotted key of `statistics.json`."""
    return Metric(key, label, unit, meaning, SUMMARY, section="gradients", shown=shown)


def _score(key: str, label: str, meaning: str, better: Better | None = None) -> Metric:
    """A share that lm-eval gives for one of its tasks."""
    return Metric(key, label, "", meaning, SUMMARY, None, better, shown=Shown("%", 100, decimals=2))


_STUDIES = (
    Metric(
        *("time_to_accuracy_s", "time to accuracy", "s", "inf when missed"),
        *(SUMMARY, None, "lower"),
        timed=True,
    ),
    Metric("bytes_ratio", "bytes, BF16 = 1", "", "bytes per step over BF16's", better="lower"),
    Metric("vnmse_std", "±", "", "standard deviation of the vNMSE over repeats", shown=Shown(digits=2)),
    Metric(
        *("codec_s", "codec work", "s", "of the busiest rank in one synchronization"),
        *(SUMMARY, None, "lower"),
        shown=MILLISECONDS,
    ),
    Metric(
        *("codec_ns_per_coordinate", "codec ns", "ns", "codec work per coordinate"),
        *(SUMMARY, None, "lower"),
        shown=SHORT,
    ),
    Metric("yardstick_vnmse", "rate–distortion bound", "", "the vNMSE that the wire bits allow", SUMMARY),
    Metric(
        *("db_above_yardstick", "dB above bound", "dB", "the vNMSE over that bound"),
        *(SUMMARY, None, "lower"),
        shown=Shown(decimals=1),
    ),
    Metric(
        *("allreduce_s", "all-reduce", "s", "of the slowest rank in one round"),
        *(SUMMARY, None, "lower"),
        shown=FULL_MILLISECONDS,
    ),
    Metric(
        *("bus_bandwidth", "bus bandwidth", "B/s", "float32 bytes over the all-reduce, times 2(n − 1)/n"),
        *(SUMMARY, None, "higher"),
        shown=Shown("MB/s", 1e-6, digits=3),
    ),
    Metric("measured_over_modelled", "measured / modelled", "", "all-reduce", SUMMARY, shown=SHORT),
    Metric("to_bf16", "to BF16", "", "all-reduce, over BF16's", better="lower", shown=SHORT),
    Metric("by_bits", "by bits", "", "wire bits, over BF16's", better="lower", shown=SHORT),
    Metric("over_bits", "to BF16 over by bits", "", "what bits do not explain", better="lower", shown=SHORT),
    Metric("saved_s", "saved", "s", "BF16's all-reduce less this", better="higher", shown=FULL_MILLISECONDS),
    Metric(
        *("cpu_step_s", "CPU time of a step", "s", "of all workers together"),
        *(SUMMARY, None, "lower"),
        shown=Shown("ms", 1e3, decimals=2),
    ),
    Metric("to_bare", "bare = 1", "", "over the bare loop's", better="lower", shown=Shown(decimals=3)),
    _score("acc", "accuracy", "share of documents whose right ending is the likeliest", "higher"),
    _score("acc_norm", "accuracy by length", "as acc, with likelihoods per character", "higher"),
    _score("acc_stderr", "accuracy ±", "standard error of acc over the documents"),
    _score("acc_norm_stderr", "accuracy by length ±", "standard error of acc_norm over the documents"),
    _score("cut_requests", "cut requests", "share of requests cut to the context", "lower"),
    Metric("documents", "documents", "", "that were scored", SUMMARY),
    _speed("ns_per_coordinate", "ns/coordinate", "ns", "shortest time", "lower"),
    _speed("values_gb_per_s", "GB/s of values", "GB/s", "of the bucket's coordinates", "higher"),
    _speed("bytes_per_coordinate", "bytes/coordinate", "B", "of memory, read and written", None),
    _speed(
        *("share_of_copy", "of a copy's bandwidth", "", "bytes read and written", "higher"),
        shown=Shown("%", 100, decimals=0),
    ),
    _speed("speedup", "× default", "", "over the definition on one thread", "higher"),
    _gradients("workers.energy_of_mean", "energy of the mean / mean energy", "", "of the workers' gradients"),
    *(
        Metric(
            f"norms.below_{share}th",
            f"norms below 1/{share}",
            "",
            f"share of groups of that size whose norm is below a {share}th of the median",
            SUMMARY,
            shown=FULL_PERCENT,
        )
        for share in (10, 100)
    ),
    _gradients(
        *("workers.top_1_percent", "energy in the top 1 % of super-groups", "", "of the workers' energy"),
        FULL_PERCENT,
    ),
    _gradients(
        *("workers.top_10_percent", "energy in the top 10 % of super-groups", "", "of the workers' energy"),
        FULL_PERCENT,
    ),
    _gradients("workers.zeros", "exact zeros", "", "share of coordinates", FULL_PERCENT),
    _gradients("workers.largest", "largest |x|", "", "of all workers"),
    _gradients("workers.kurtosis", "kurtosis (Gaussian: 3)", "", "of all workers' coordinates"),
    _gradients("entropy.nats", "differential entropy", "nats", "of each worker's gradient, averaged", NATS),
    _gradients(
        *("entropy.gaussian_nats", "differential entropy of a Gaussian of that variance", "nats"),
        *("of each worker's gradient, averaged", NATS),
    ),
    _gradients(
        *("entropy.matrix_nats", "differential entropy of matrices, weighted mean", "nats"),
        *("of each worker's gradient, averaged", NATS),
    ),
)

METRICS: Mapping[str, Metric] = {metric.key: metric for metric in (*_TRAINING, *_TIMES, *_BYTES, *_STUDIES)}
"""All of them by key, in the order in which records and tables show them."""


def in_words(metric: str) -> str:
    """What a run's metric is called in tables, plots and lines."""
    return METRICS[metric].words if metric in METRICS else metric


def keys(chosen: Callable[[Metric], object]) -> tuple[str, ...]:
    """The keys of the metrics for which `chosen` holds, in the table's order."""
    return tuple(key for key, metric in METRICS.items() if chosen(metric))


OPERATION = keys(lambda metric: metric.section == "operation")
"""The figures of a benchmarked operation."""

PARTS = keys(lambda metric: metric.plot == "parts")
"""The parts of a step, which sum to it."""


def kind_of(cluster: str | None, network: str | None) -> Kind:
    """What a run's times are, by the names of its cluster and its network."""
    if cluster == "virtual":
        return "modelled"
    return "emulated" if network in ("paced", "shaped") else "measured"


def of_ranks(ranks: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """A step of all ranks from each one's figures, by `Metric.ranks`, in the order of rank 0's.

    Of several slowest ranks the one that waits least counts. What a rank's spans do not tell is NaN, and
    None in the result.
    """
    slowest = max(ranks, key=lambda own: (own["step_time_s"], -own["wait_s"]))
    row = dict[str, float | None]()
    for key in ranks[0]:
        metric, values = METRICS[key], [own[key] for own in ranks]
        value = slowest[key] if metric.ranks == "slowest" else _REDUCE[metric.ranks or "max"](values)
        row[key] = None if metric.spans and value != value else value
    return row


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


_REDUCE: Mapping[str, Callable[[Iterable[float]], float]] = {
    "mean": _mean,
    "max": max,
    "min": min,
    "sum": sum,
}

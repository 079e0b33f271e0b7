"""`task=statistics`: its settings, its record, `statistics.json`, and tables of several files' statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from gradwire.codecs.fields import NUMBER
from gradwire.harness.files.reading import read_bytes
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import PLOTS
from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord
from gradwire.harness.record.seal import REMEDY
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.report.configs import flatten
from gradwire.harness.report.frame import spreads, table, values_in
from gradwire.harness.report.tables import Column, Line, figures_table
from gradwire.harness.runtime.fields import at_least, list_of
from gradwire.harness.studies.replay.study import LARGEST_BUCKET_MB, SMALLEST_BUCKET_MB
from gradwire.harness.studies.study import Compared, Entry, Study
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.metrics import keys
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import LONGEST_RUN


@dataclass(frozen=True)
class StatisticsConfig:
    """Statistics of saved gradients and their parameters."""

    # budgets of codec=dynamiq whose widths are shown, and rates of the rate-distortion bound
    bits: list[Any] = list_of([3, 4, 5, 6], fewest=1, kinds=(NUMBER,), low=0, high=64)
    # of a run's saved steps: ranks as shares of a matrix's smaller side, 16, 32 and 64 of 1024
    rank_shares: list[Any] = list_of([1 / 64, 1 / 32, 1 / 16], fewest=1, kinds=(NUMBER,), low=0, high=1)
    # of a run's entropies by step: shares of the steps that are sampled, in windows of so many steps
    alphas: list[Any] = list_of([0.05, 0.1, 0.25, 0.5], fewest=1, kinds=(NUMBER,), low=1e-6, high=1)
    window: int = at_least(1, 1000, LONGEST_RUN)
    # of a run's entropies by step: windows whose means are compared with single steps
    windows: list[int] = list_of([1, 100, 500, 1000, 2500], fewest=1, low=1, high=LONGEST_RUN)
    # MiB of float32 synchronized together, where the file does not say which buckets there are
    bucket_mb: int | float = at_least(SMALLEST_BUCKET_MB, 25.0, LARGEST_BUCKET_MB)


@dataclass(frozen=True, kw_only=True)
class StatisticsTask(RecordedConfig):
    """The description of saved gradients."""

    gradients: (
        str  # .npz or .safetensors with an array `gradients` (workers, coordinates), or a run directory
    )
    statistics: StatisticsConfig
    tracking: TrackingConfig


SAMPLED = (
    ("by_rate", "rate", "β", {"rate_correlation": "correlation", "rate_error": "mean_error"}),
    (
        *("by_alpha", "alpha", "α"),
        {"relative_change": "largest_change", "mean_relative_change": "mean_change"},
    ),
    ("by_window", "window", "w", {"window_correlation": "correlation", "window_mse": "mse"}),
)
"""Tables of `sampling`: the key that differs among their rows, its sign in cases, and metrics by keys of a
row."""


@dataclass(frozen=True)
class StatisticsRecord(StudyRecord):
    """Figures of one file of gradients or weights, or of a run's steps; distributions stay in the file."""

    file: ClassVar[str] = "statistics.json"

    gradients: str  # the file or the run directory
    about: dict[str, Any]  # what the file says of itself
    weights: dict[str, Any] | None = None  # of weights alone
    evolution: dict[str, Any] | None = None  # of a run alone

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """Sampling has a case for each share of coordinates, share of steps and window: `β=0.25`, `α=0.1`."""
        parts = {key: part for key, part in content.items() if isinstance(part, dict) and key != "about"}
        for key, value in flatten(parts).items():
            yield from Figure(key).values(value, content)
        for norms in content.get("norms", ()):
            case = f"{norms['size']} {'shuffled' if norms['shuffled'] else 'as they are'}"
            for key in ("below_10th", "below_100th"):
                yield from Figure(f"norms.{key}").values(norms[key], content, case)
        for part, axis, sign, metrics in SAMPLED:
            for row in (content.get("sampling") or {}).get(part, ()):
                for metric, key in metrics.items():
                    case = f"{sign}={row[axis]:g}"
                    yield from Figure(f"sampling.{metric}").values(row[key], content, case)


FORMS = ("-print", "-dark")

GRADIENTS, WEIGHTS, EVOLUTION = "gradients", "weights", "evolution"
"""The tables: of gradients in one step, of weights, of gradients over training."""

FIGURES = {WEIGHTS: "weights.error", EVOLUTION: "evolution.error_change"}
"""A figure that only one of the tables has."""

SMALL_NORMS = {
    "256 as they are": "norms of super-groups below a tenth of the median",
    "256 shuffled": "the same, coordinates shuffled",
}
"""The cases of DynamiQ's Figure 1, and their columns."""

NOTE = "Figures are the median over seeds, with the range from the lowest to the highest."


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """A row for each model and step: its gradients or weights are one subject, whatever their seed."""
    subjects: dict[str, list[Path]] = {}
    for entry in entries:
        subjects.setdefault(_subject(entry.record), []).append(entry.folder)
    found = {name: _figures(own) for name, own in subjects.items()}
    lines: dict[str, list[Line]] = {WEIGHTS: [], GRADIENTS: [], EVOLUTION: []}
    for name, figures in found.items():
        what = next((what for what, figure in FIGURES.items() if figure in figures), GRADIENTS)
        lines[what].append(([name], figures))
    tables = [figures_table(what.title(), [what], own, _columns(what)) for what, own in lines.items() if own]
    rows = [
        {
            "gradients": name,
            "seeds": len(subjects[name]),
            **{key: each.median for key, each in figures.items()},
        }
        for name, figures in found.items()
    ]
    return Compared(tables, rows, [NOTE], draw=partial(_copy_plots, subjects))


def _columns(what: str) -> list[Column]:
    own = [Column(key) for key in keys(lambda metric: metric.section == what)]
    small = [Column("norms.below_10th", at=case, label=label) for case, label in SMALL_NORMS.items()]
    return [*small, *own] if what == GRADIENTS else own


def _subject(one: StatisticsRecord) -> str:
    """`gemma1b-step20`, `gemma1b-weights20`, `gemma1b-run`, or the file's name where that is not known."""
    model, step = one.about.get("model"), one.about.get("step")
    if one.evolution is not None and model is not None:
        return f"{model}-run"
    if model is None or step is None:
        return Path(one.gradients).stem
    return f"{model}-{'step' if one.weights is None else 'weights'}{step}"


def _figures(folders: Sequence[Path]) -> dict[str, Spread]:
    """Metrics by key, those of small norms by case, over the seeds."""
    values = table(value for folder in folders for value in values_in(folder))
    whole = spreads(values[values.case == ""], "metric")
    small = values[(values.metric == "norms.below_10th") & values.case.isin(list(SMALL_NORMS))]
    return whole | spreads(small, "case")


def _copy_plots(subjects: Mapping[str, Sequence[Path]], output: Path) -> None:
    """Puts the plots of each subject's first seed beside the table, as `<plot>-<name>-print.svg`."""
    for name, (folder, *_) in subjects.items():
        for path in sorted((folder / PLOTS).glob("*")):
            for form in FORMS:
                plot, found, suffix = path.name.partition(f"{form}.")
                if found:
                    content = read_bytes(path, remedy=REMEDY, inside=folder)
                    write_atomically(output / f"{plot}-{name}{form}.{suffix}", content)


STUDY = Study(
    StatisticsTask,
    StatisticsRecord,
    "gradwire.harness.studies.statistics.task",
    __name__,
)

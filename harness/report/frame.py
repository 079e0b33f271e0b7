"""All records' figures in one long table: a line for each value that a run has of a metric.

`frame(["outputs"])` reads every finished record below a folder, of whatever task. Its columns are `run` (the
directory), `task`, `metric` (a key of METRICS where it is one), `value`, `unit`, `case` (what of the run the
value is of: a phase, a target, a benchmarked operation; empty for the whole run), `kind`, `seed` and `step`
(of a training step, an evaluation, a round; missing for the whole run). `settings` has what the runs were
asked to do, by the same `run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.harness.files.finite_json import restored
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_json, read_yaml
from gradwire.harness.record.directory import CONFIG, SUMMARY, is_done
from gradwire.harness.record.runs import Run, find_runs, load_run
from gradwire.harness.record.seal import check_done
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.configs import flatten
from gradwire.harness.timing.measure.metric import Kind, Spread
from gradwire.harness.timing.measure.metrics import METRICS, OPERATION, kind_of

if TYPE_CHECKING:
    from pandas import DataFrame


LAST = 10
"""Training steps whose mean loss is the `train_loss` of a run."""


class Value(NamedTuple):
    """One line of the table."""

    run: str
    task: str
    metric: str
    value: float
    case: str = ""
    kind: Kind = "measured"
    seed: int | None = None
    step: int | None = None


def frame(roots: Iterable[str | Path], *, steps: bool = False) -> DataFrame:
    """The figures of all finished records at or below `roots`; with `steps` every training step's, too.

    Raises ValueError in one line for a record that cannot be read.
    """
    return table(value for folder in find_runs(roots) for value in values_in(folder, steps=steps))


def settings(roots: Iterable[str | Path]) -> DataFrame:
    """A line for each record, by `run`: its configuration by dotted key."""
    from pandas import DataFrame

    folders = [folder for folder in find_runs(roots) if (folder / CONFIG).is_file()]
    flat = [flatten(read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder)) for folder in folders]
    return DataFrame(flat, index=[str(folder) for folder in folders]).rename_axis("run")


def table(values: Iterable[Value]) -> DataFrame:
    """The long table of `values`, in their order."""
    from pandas import DataFrame

    found = DataFrame(list(values), columns=list(Value._fields)).astype(
        {"value": "float64", "seed": "Int64", "step": "Int64"}
    )
    units = {key: metric.unit for key, metric in METRICS.items()}
    found.insert(found.columns.get_loc("value") + 1, "unit", found.metric.map(units).fillna(""))
    return found


def values_in(folder: Path, *, steps: bool = False) -> Iterator[Value]:
    """The figures of the record in `folder`; none unless it is finished."""
    task = _task(folder)
    file, read = STUDIES.get(task, (SUMMARY, None))
    if not (folder / file).is_file() or not (is_done(folder) or task == "overhead"):
        return
    if read is None:
        yield from values_of(load_run(folder), steps=steps)
        return
    if is_done(folder):
        check_done(folder)
    found = restored(read_json(folder / file, remedy=REMEDY, inside=folder))
    try:
        yield from [value._replace(run=str(folder), task=task) for value in read(found)]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnusableFileError(folder / file, f"is no record of task={task} ({error!r})", REMEDY) from None


def _task(folder: Path) -> str:
    """Which task left the record; `task=overhead` keeps nothing but its figures."""
    if not (folder / CONFIG).is_file():
        return "overhead"
    task = read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder).get("task")
    return str(task.get("name")) if isinstance(task, Mapping) else "train"


def values_of(run: Run, *, steps: bool = False) -> Iterator[Value]:
    """The figures of a finished run: its own, then by target, phase, evaluation and, if asked, step."""
    summary = run.done
    about = (str(run.folder), "train" if summary.trace_of is None else "retime")

    def value(metric: str, found: float, case: str = "", step: int | None = None) -> Value:
        kind = METRICS[metric].kind(run.kind) if metric in METRICS else "measured"
        return Value(*about, metric, found, case, kind, run.seed, step)

    for key, found in summary.values().items():
        yield value(key, found)
    for key, percentiles in summary.spread.items():
        for case, seconds in percentiles.items():
            yield value(key, seconds, case)
    losses = [row["loss"] for row in run.steps[-LAST:] if row.get("loss") is not None]
    if losses:
        yield value("train_loss", fmean(losses))
    for target, reached in summary.tta.items():
        yield value("time_to_accuracy_s", reached["train_time_s"], target)
    for phase, count in summary.bytes_by_phase.items():
        yield value("bytes_sent", count, phase)
    for row in (*run.evals, *(run.steps if steps else ())):
        for key, found in flatten(row).items():
            if key != "step" and isinstance(found, int | float):
                yield value(key, found, step=row["step"])


def spreads(found: DataFrame, *by: str) -> dict[Any, Spread]:
    """The spread of the lines that are alike in the columns `by`, keyed by these: a tuple for several.

    NaN counts as infinity, as a miss does.
    """
    groups = found.assign(value=found.value.fillna(math.inf)).groupby(list(by))
    return {key: Spread(*line) for key, *line in groups.value.agg(["median", "min", "max"]).itertuples()}


def over_runs(found: DataFrame, runs: Iterable[str]) -> dict[str, Spread]:
    """The spread of each metric over whole runs."""
    return spreads(found[found.run.isin(list(runs)) & (found.case == "") & found.step.isna()], "metric")


Read = Callable[[Mapping[str, Any]], Iterator[Value]]


def _value(metric: str, found: Any, **about: Any) -> Iterator[Value]:
    """A line whose run and task are filled in later; none for what is not known."""
    if isinstance(found, int | float):
        yield Value("", "", metric, found, **about)


def _by_level(found: Mapping[str, Any], **about: Any) -> Iterator[Value]:
    """Wire bits inside nodes and between them; none of a record with one node, or of an older one."""
    for level, bits in (found.get("wire_bits_by_level") or {}).items():
        yield from _value(f"wire_bits_by_level.{level}", bits, **about)


def _replay(found: Mapping[str, Any]) -> Iterator[Value]:
    """A line for each repeat's error, which has a seed of its own; NaN where it has no value."""
    seed = found["seed"]
    for index, error in enumerate(found["vnmse"]):
        yield from _value("vnmse", math.nan if error is None else error, seed=seed + index)
    for key in ("wire_bits_per_coordinate", "yardstick_vnmse", "db_above_yardstick", *CODEC_TIMES):
        yield from _value(key, found[key], seed=seed)
    yield from _by_level(found, seed=seed)
    for phase, bits in found["wire_bits_by_phase"].items():
        yield from _value("wire_bits_per_coordinate", bits, case=phase, seed=seed)
    for rank, count in enumerate(found["bytes_sent_per_rank"]):
        yield from _value("bytes_sent", count, case=f"rank {rank}", seed=seed)


def _allreduce(found: Mapping[str, Any]) -> Iterator[Value]:
    """Each round where real workers took it; else the median, the lowest and the highest, a case each."""
    real = kind_of(None, found["network_settings"].get("name"))
    for step, seconds in enumerate(found["rounds_s"]):
        yield from _value("allreduce_s", seconds, kind=real, step=step)
    kinds: dict[str, tuple[str, Kind]] = {
        "measured_codec_s": ("codec_s", real),
        "modelled": ("allreduce_s", "modelled"),
        "modelled_codec_s": ("codec_s", "modelled"),
    }
    for key, (metric, kind) in kinds.items():
        for case, seconds in (found[key] or {}).items():
            yield from _value(metric, seconds, case=case, kind=kind)
    yield from _value("wire_bits_per_coordinate", found["wire_bits_per_coordinate"])
    yield from _by_level(found)
    for part, metric in (("gradients", "scatter_s"), ("weights", "gather_s")):
        own = (found.get("parts") or {}).get(part)
        if own is None:
            continue
        for key, kind in (("measured", real), ("modelled", "modelled")):
            for case, seconds in (own[key] or {}).items():
                yield from _value(metric, seconds, case=case, kind=kind)
    of_shown_time = "modelled" if found["measured"] is None else real
    yield from _value("bus_bandwidth", found.get("bus_bandwidth"), kind=of_shown_time)


def _predict(found: Mapping[str, Any]) -> Iterator[Value]:
    """Times of a step that was worked out, and what follows from them."""
    for key, metric in PREDICTED.items():
        yield from _value(metric, found[key], kind="modelled")
    for phase, count in found["bytes_by_phase"].items():
        yield from _value("bytes_sent", count, case=phase)


def _simulate(found: Mapping[str, Any]) -> Iterator[Value]:
    """The figures of a simulated training, and its ratios at each rate that the links have: a case each."""
    for key in SIMULATED:
        yield from _value(key, found[key], kind="modelled", seed=found["seed"])
    for phase in found["phases"] if len(found["phases"]) > 1 else ():
        case = f"{phase['factor']:g} from {phase['from_s']:g} s"
        for key in ("q_ratio_first", "q_ratio", "followed_after"):
            yield from _value(key, phase[key], case=case, kind="modelled", seed=found["seed"])


def _bench(found: Mapping[str, Any]) -> Iterator[Value]:
    """A case for each operation, dtype, size, implementation and number of threads."""
    for row in found["rows"]:
        named = ("operation", "dtype", "numel", "implementation", "threads")
        case = " ".join(str(row[key]) for key in named)
        for key in OPERATION:
            yield from _value(key, row[key], case=case, seed=found["seed"])


def _overhead(found: Mapping[str, Any]) -> Iterator[Value]:
    """Each block of each contestant."""
    for contestant, blocks in found["blocks"].items():
        for step, (cpu_s, wall_s) in enumerate(blocks):
            yield from _value("cpu_step_s", cpu_s, case=contestant, step=step)
            yield from _value("step_time_s", wall_s, case=contestant, step=step)


def _statistics(found: Mapping[str, Any]) -> Iterator[Value]:
    """The single figures, by dotted key; distributions and tables stay in the file."""
    seed = found["seed"]
    parts = {key: part for key, part in found.items() if isinstance(part, dict) and key != "about"}
    for key, value in flatten(parts).items():
        yield from _value(key, value, seed=seed)
    for norms in found.get("norms", ()):
        case = f"{norms['size']} {'shuffled' if norms['shuffled'] else 'as they are'}"
        for key in ("below_10th", "below_100th"):
            yield from _value(f"norms.{key}", norms[key], case=case, seed=seed)
    yield from _sampling(found.get("sampling") or {}, seed)


SAMPLED = (
    ("by_rate", "rate", "β", {"rate_correlation": "correlation", "rate_error": "mean_error"}),
    (
        *("by_alpha", "alpha", "α"),
        {"relative_change": "largest_change", "mean_relative_change": "mean_change"},
    ),
    ("by_window", "window", "w", {"window_correlation": "correlation", "window_mse": "mse"}),
)
"""Tables of `sampling`: what tells their rows apart, its sign in cases, and metrics by keys of a row."""


def _sampling(found: Mapping[str, Any], seed: int) -> Iterator[Value]:
    """A case for each share of coordinates, share of steps and window: `β=0.25`, `α=0.1`, `w=1000`."""
    for table, axis, sign, metrics in SAMPLED:
        for row in found.get(table, ()):
            for metric, key in metrics.items():
                yield from _value(f"sampling.{metric}", row[key], case=f"{sign}={row[axis]:g}", seed=seed)


def score_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each task and metric of `scores.json`: the figure, and what it was taken over."""
    over = ("documents", "available", "left_out", "cut", "version")
    return [
        {"task": task, "metric": metric, **figure, **{key: scored[key] for key in over}}
        for task, scored in found["tasks"].items()
        for metric, figure in scored["metrics"].items()
    ]


def _scores(found: Mapping[str, Any]) -> Iterator[Value]:
    """A case for each task."""
    for row in score_rows(found):
        about = {"case": row["task"], "seed": found["seed"]}
        yield from _value(row["metric"], row["value"], **about)
        yield from _value(f"{row['metric']}_stderr", row["stderr"], **about)
    for task, scored in found["tasks"].items():
        yield from _value("documents", scored["documents"], case=task, seed=found["seed"])
        if scored["requests"]:
            yield from _value("cut_requests", scored["cut"], case=task, seed=found["seed"])


CODEC_TIMES = ("codec_s", "codec_ns_per_coordinate")

PREDICTED = {
    "step_s": "step_time_s",
    **{key: key for key in ("compute_s", "gradients_s", "weights_s", "stages_s", "other_s", "codec_s")},
    **{
        key: key
        for key in (
            "gradient_comm_s",
            "training_days",
            "tflops",
            "over_uncompressed",
            "printed_tflops",
            "error",
        )
    },
}
"""Keys of `predict.json` and their metrics."""

SIMULATED = (
    *("rounds", "utilization", "t_wait", "wait_s", "overlap_s", "row", "osf", "compute_s"),
    *("q_ratio_first", "q_ratio", "least_bits"),
)
"""Keys of a simulated training's summary, which are its metrics."""

STUDIES: Mapping[str, tuple[str, Read]] = {
    "replay": (SUMMARY, _replay),
    "allreduce": ("allreduce.json", _allreduce),
    "predict": ("predict.json", _predict),
    "simulate": (SUMMARY, _simulate),
    "bench": ("bench.json", _bench),
    "overhead": ("overhead.json", _overhead),
    "statistics": ("statistics.json", _statistics),
    "score": ("scores.json", _scores),
}
"""What measurements beside training leave, by task: the file, and how its figures become lines."""

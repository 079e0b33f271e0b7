"""Comparison of a sweep's all-reduces: measured next to modelled times, and every codec next to BF16 on the
same network.

Times of low-rank gradients as a function of the rank are fitted by EDGC's linear model of T(r) (§IV-D1,
Figure 9).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gradwire.codecs.arithmetic.line_fit import LineFit, fit_line
from gradwire.harness.network.configured import recorded_text
from gradwire.harness.report.figures import TITLE_CHARACTERS, write_plots
from gradwire.harness.report.series import UNNAMED, Panel, Series, series_plot
from gradwire.harness.report.style import Hue, LineStyle, plain
from gradwire.harness.report.tables import Column, Line, Table, figures_table, number
from gradwire.harness.report.views import from_zero, x_from
from gradwire.harness.studies.allreduce.study import PART_TIMES, AllReduceSummary
from gradwire.harness.studies.comparison import Compared, Entry, figure_columns, titled_tables
from gradwire.harness.timing.measure.metrics import kind_of

FEWEST_RANKS = 3
"""The smallest number of compression ranks for fitting a line; two points always lie on one."""


@dataclass(frozen=True)
class RankLine:
    """The median seconds by compression rank of otherwise identical all-reduces, the `kind` of these times,
    and the fitted line."""

    about: str
    network: str
    kind: str
    times: Mapping[int, float]
    line: LineFit


def rank_lines(runs: Sequence[AllReduceSummary], ranks: Sequence[int | None]) -> list[RankLine]:
    """A line for each codec, gradient and network with times at three or more compression ranks, for measured
    and for modelled times. `ranks` holds the runs' compression ranks."""
    alike: dict[tuple[object, ...], dict[int, AllReduceSummary]] = {}
    for run, rank in zip(runs, ranks, strict=True):
        if rank is not None:
            settings = tuple(sorted((key, repr(value)) for key, value in run.network_settings.items()))
            about = (run.codec, run.workers, run.coordinates, run.pieces, settings)
            alike.setdefault(about, {})[rank] = run
    return [line for by_rank in alike.values() if len(by_rank) >= FEWEST_RANKS for line in _lines(by_rank)]


def _lines(by_rank: Mapping[int, AllReduceSummary]) -> Iterator[RankLine]:
    """The lines of all-reduces that differ only in the compression rank."""
    one = next(iter(by_rank.values()))
    about = f"{one.codec}, {one.workers} workers, {one.coordinates:,} coordinates"
    found = _times(by_rank)
    network = recorded_text(one.network_settings, next(iter(found)))
    for kind, times in found.items():
        yield RankLine(about, network, kind, times, fit_line(list(times.items())))


def rank_remarks(lines: Sequence[RankLine]) -> Iterator[str]:
    """A remark for each line: its formula and its mean relative error."""
    for one in lines:
        ranks = ", ".join(map(str, sorted(one.times)))
        yield (
            f"{one.about}, {_timed(one)}: the time at rank r is {one.line.slope * 1e3:.4g} ms · r + "
            f"{one.line.constant * 1e3:.4g} ms, with a mean error of {one.line.error:.2%} (MAPE) at ranks "
            f"{ranks}."
        )


def plot_ranks(lines: Sequence[RankLine], folder: Path) -> list[Path]:
    """Writes a plot with a panel for each all-reduce: its times against the compression rank, and the fitted
    lines; returns the files."""
    if not lines:
        return []
    panels = []
    for about, network in dict.fromkeys((one.about, one.network) for one in lines):
        alike = [one for one in lines if (one.about, one.network) == (about, network)]
        title = "\n".join([about.partition(", ")[2], *textwrap.wrap(network, TITLE_CHARACTERS)])
        series = [each for one in alike for each in _series(one)]
        panels.append(Panel(series, "time [ms]", title=title, views=[x_from(0), from_zero]))
    panels[-1] = replace(panels[-1], x_label="rank")
    heading = "time of an all-reduce over the rank, and its line"
    return write_plots([series_plot("ranks", heading, panels, (1.8,) * len(panels))], folder)


def _timed(one: RankLine) -> str:
    """The kind of a line's times and their network; modelled times shown next to measured ones have the same
    network."""
    return one.network if one.network.startswith(one.kind) else f"{one.kind} beside {one.network}"


def _series(one: RankLine) -> list[Series]:
    """The line, and the times that it was fitted to."""
    hue: Hue = "vermilion" if one.kind == "modelled" else "ink"
    ranks = sorted(one.times)
    line = [(rank, 1e3 * one.line.at(rank)) for rank in (0, ranks[-1])]
    times = [(rank, 1e3 * one.times[rank]) for rank in ranks]
    return [
        Series.through(line, plain(hue), UNNAMED, width=0.9),
        Series.through(times, LineStyle(hue, "none", "o"), one.kind),
    ]


def _times(by_rank: Mapping[int, AllReduceSummary]) -> dict[str, dict[int, float]]:
    """The median seconds by compression rank: measured ones if all runs have them, and modelled ones."""
    real = {rank: run.measured.median for rank, run in by_rank.items() if run.measured is not None}
    found: dict[str, dict[int, float]] = {}
    if len(real) == len(by_rank):
        found[next(iter(by_rank.values())).kind] = real
    return found | {"modelled": {rank: run.modelled.median for rank, run in by_rank.items()}}


BASELINE = "bf16"

NOTES = (
    "Times: median (lowest–highest) over the rounds, of the slowest rank.",
    "Modelled: the simulated clock, codec work measured one rank at a time; a shaped network's links at the "
    "rate that one stream was found to carry before the run.",
    "Bus bandwidth: bytes of the float32 vector over the time, times 2(n − 1)/n, whatever the codec sends; a "
    "codec of b bits can reach 32/b times what the links carry.",
    "Bus bandwidth, codec work, to BF16 and saved: of the times that the title names. To BF16: over BF16's "
    "on the same network. By bits: the wire bits over BF16's, what the wire alone would give. Saved: BF16's "
    "time less this one.",
)

SHARDED_NOTES = (
    "Scatter, gather: of gradients and of weights; all ranks begin each together, and a round is both.",
    "Bus bandwidth of these: bytes of float32 gradients and of weights in the model's dtype over the time, "
    "times (n − 1)/n.",
    "To exact: over the time of codec=fp32 with parallel.weights=exact on the same network. By bytes: the "
    "bytes over its bytes.",
)
"""Notes of tables about scattered gradients and gathered weights."""

SHARDED_BASELINE = ("fp32", "exact")
"""The codec and the weights that sharded rounds are compared with."""

FIGURES = ("wire_bits_per_coordinate", "measured", "modelled", "measured_codec_s", "modelled_codec_s")
"""Fields of a summary that tables show, as spreads or as single values."""

COLUMNS = ("bus_bandwidth", "codec_s", "to_bf16", "by_bits", "saved_s")

FLOAT32 = 4
"""Bytes of a coordinate of the uncompressed vector."""

SHARDED_COLUMNS = (
    *("scatter_s", "gather_s", "bus_bandwidth", "codec_s"),
    *("to_exact", "by_bytes", "over_bytes"),
)
"""The columns that follow the wire bits and the times."""

ABOUT = (
    *("codec", "topology", "workers", "coordinates", "pieces", "network"),
    *("rate_mbit", "goodput_mbit", "background_jobs", "model_dtype", "weights"),
)
"""The settings that table.csv shows with a run's figures."""


@dataclass(frozen=True)
class FinishedAllReduce:
    """A finished all-reduce with its spreads and numbers; those that it lacks are None."""

    about: AllReduceSummary
    figures: dict[str, Any]

    @property
    def subject(self) -> str:
        """The settings that two runs must share for their codecs to be comparable, including whether times
        were measured."""
        one = self.about
        settings = " ".join(f"{key}={value}" for key, value in sorted(one.network_settings.items()))
        about: tuple[object, ...] = (one.topology, one.workers, one.coordinates, one.kernel_backend)
        about += (one.measured is not None, *([] if one.model_dtype is None else [one.model_dtype]))
        return f"{about} {settings}"

    @property
    def line(self) -> Line:
        one = self.about
        name = one.codec if one.weights is None else f"{one.codec}; {one.weights}"
        return [name if one.pieces == 1 else f"{name}, {one.pieces} segments"], self.figures

    @property
    def row(self) -> dict[str, object]:
        """This run's line of table.csv, in seconds and bits."""
        own = self.figures
        times = {
            f"{name}_{part}_s": getattr(own[name], part, None)
            for name in ("measured", "modelled")
            for part in ("median", "low", "high")
        }
        work = {name: getattr(own[name], "median", None) for name in ("measured_codec_s", "modelled_codec_s")}
        return {
            **{key: getattr(self.about, key) for key in ABOUT},
            "network": self.about.network_text,
            "wire_bits_per_coordinate": own["wire_bits_per_coordinate"],
            **times,
            "measured_over_modelled": own["measured_over_modelled"],
            "bus_bandwidth": own["bus_bandwidth"],
            **work,
            **{key: own.get(key) for key in ("to_bf16", "by_bits", "over_bits", "saved_s")},
            **{key: own.get(key) for key in (*PART_TIMES.values(), "to_exact", "by_bytes", "over_bytes")},
            **{key: own[key] for key in self.about.columns()},
        }


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """A table for each subject, and fitted lines where the compression rank varies."""
    figures = (*FIGURES, *(column.at for column in figure_columns(entries)))
    runs = [
        FinishedAllReduce(entry.record, {key: getattr(entry.record, key) for key in figures})
        for entry in entries
    ]
    for run in runs:
        run.figures.update(_derived(run, runs))
    tables = []
    for subject in dict.fromkeys(run.subject for run in runs):
        alike = [run for run in runs if run.subject == subject]
        first = alike[0].about
        named = ["codec"] if first.model_dtype is None else ["codec; weights"]
        title = _place(first, f", {first.coordinates:,} coordinates")
        tables.append(figures_table(title, named, [run.line for run in alike], _columns(first)))
    tables += over_sizes(runs)
    notes = NOTES if all(run.about.parts is None for run in runs) else (*NOTES, *SHARDED_NOTES)
    ranks = [entry.settings.get("codec.rank") for entry in entries]
    lines = rank_lines([run.about for run in runs], [None if rank is None else int(rank) for rank in ranks])
    rows = [run.row for run in runs]
    return Compared(tables, rows, (*notes, *rank_remarks(lines)), draw=partial(plot_ranks, lines))


def over_sizes(runs: Sequence[FinishedAllReduce]) -> list[Table]:
    """A table for each setup in which a codec was timed at several sizes, with rows from small to large."""
    series: dict[tuple[str, str], list[FinishedAllReduce]] = {}
    for run in sorted(runs, key=lambda run: run.about.coordinates):
        series.setdefault((_place(run.about), run.line[0][0]), []).append(run)
    lines, columns = list[tuple[str, Line]](), dict[str, list[Column | str]]()
    for (place, name), own in series.items():
        if len({run.about.coordinates for run in own}) > 1:
            title, compared_to = (
                f"Over sizes: {place}",
                "to_bf16" if own[0].about.parts is None else "to_exact",
            )
            columns[title] = [*_columns(own[0].about)[:3], "bus_bandwidth", compared_to]
            for run in own:
                size = run.about.coordinates
                cells = [name, f"{size:,}", number(FLOAT32 * size / 1e6)]
                lines.append((title, (cells, run.figures)))
    found = titled_tables(lines, ["codec", "coordinates", "MB of float32"], columns.__getitem__)
    return [replace(table, names=3) for table in found]


def _place(one: AllReduceSummary, size: str = "") -> str:
    what = "" if one.model_dtype is None else f"sharded, {one.model_dtype} model, "
    return f"{what}{one.topology} of {one.workers}{size}; {one.network_text}"


def _columns(one: AllReduceSummary) -> list[Column | str]:
    """The columns of a table whose real workers' times are of the same kind as those of `one`."""
    real = kind_of(None, one.network_settings.get("name"))
    return [
        "wire_bits_per_coordinate",
        Column("allreduce_s", "measured", real),
        Column("allreduce_s", "modelled", "modelled"),
        Column("measured_over_modelled", label=f"{real} / modelled"),
        *(COLUMNS if one.model_dtype is None else SHARDED_COLUMNS),
        *(Column(metric, field) for field, metric in one.columns().items()),
    ]


def _derived(run: FinishedAllReduce, runs: Sequence[FinishedAllReduce]) -> dict[str, Any]:
    """Figures derived from a run's summary and, if there is one, from that of the baseline with the same
    settings: BF16 or, for sharded rounds, uncompressed gradients and weights."""
    one = run.about
    found: dict[str, Any] = {
        "measured_over_modelled": one.ratio,
        "bus_bandwidth": one.bus_bandwidth,
        "codec_s": (one.measured_codec_s or one.modelled_codec_s).median,
    }
    alike = [each.about for each in runs if each.subject == run.subject and _is_baseline(each.about)]
    base = next(iter([other for other in alike if other.pieces == one.pieces] or alike), None)
    if one.parts is None:
        size, names = "wire_bits_per_coordinate", ("to_bf16", "by_bits", "over_bits")
    else:
        size, names = "bytes_sent", ("to_exact", "by_bytes", "over_bytes")
        for name, metric in PART_TIMES.items():
            found[metric] = (one.parts[name].measured or one.parts[name].modelled).median
    if base is not None and getattr(base, size) and getattr(one, size):
        to_base, by_size = one.seconds / base.seconds, getattr(one, size) / getattr(base, size)
        found |= dict(zip(names, (to_base, by_size, to_base / by_size), strict=True))
        if one.parts is None:
            found["saved_s"] = base.seconds - one.seconds
    return found


def _is_baseline(one: AllReduceSummary) -> bool:
    return one.codec == BASELINE if one.parts is None else (one.codec, one.weights) == SHARDED_BASELINE

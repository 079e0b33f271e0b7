"""All-reduces of low-rank gradients over their rank: EDGC's linear model of T(r) (§IV-D1, Figure 9)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.codecs.arithmetic.line_fit import LineFit, fit_line
from gradwire.harness.network.configured import recorded_text
from gradwire.harness.report.figures import TITLE_CHARACTERS, Plot, write_plots
from gradwire.harness.report.style import Form
from gradwire.harness.studies.allreduce.summary import AllReduceSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST = 3
"""Ranks that a line is drawn through: two are always on one."""


@dataclass(frozen=True)
class RankLine:
    """The median seconds by rank of all-reduces that are otherwise alike, `kind` of time, and their line."""

    about: str
    network: str
    kind: str
    times: Mapping[int, float]
    line: LineFit


def rank_lines(runs: Sequence[AllReduceSummary], ranks: Sequence[int | None]) -> list[RankLine]:
    """A line for each codec, gradient and network with times at three ranks or more, as measured and on the
    simulated clock. `ranks` are those of the runs."""
    alike: dict[tuple[object, ...], dict[int, AllReduceSummary]] = {}
    for run, rank in zip(runs, ranks, strict=True):
        if rank is not None:
            settings = tuple(sorted((key, repr(value)) for key, value in run.network_settings.items()))
            about = (run.codec, run.workers, run.coordinates, run.pieces, settings)
            alike.setdefault(about, {})[rank] = run
    return [line for by_rank in alike.values() if len(by_rank) >= FEWEST for line in _lines(by_rank)]


def _lines(by_rank: Mapping[int, AllReduceSummary]) -> Iterator[RankLine]:
    """Those of all-reduces that differ in nothing but the rank."""
    one = next(iter(by_rank.values()))
    about = f"{one.codec}, {one.workers} workers, {one.coordinates:,} coordinates"
    found = _times(by_rank)
    network = recorded_text(one.network_settings, next(iter(found)))
    for kind, times in found.items():
        yield RankLine(about, network, kind, times, fit_line(list(times.items())))


def rank_remarks(lines: Sequence[RankLine]) -> Iterator[str]:
    """A remark for each line: its formula, and its mean relative error."""
    for one in lines:
        ranks = ", ".join(map(str, sorted(one.times)))
        yield (
            f"{one.about}, {_timed(one)}: the time at rank r is {one.line.slope * 1e3:.4g} ms · r + "
            f"{one.line.constant * 1e3:.4g} ms, with a mean error of {one.line.error:.2%} (MAPE) at ranks "
            f"{ranks}."
        )


def plot_ranks(lines: Sequence[RankLine], folder: Path) -> list[Path]:
    """Writes a picture with a panel for each all-reduce: its times over the rank, and their lines; returns
    the files."""
    panels = list(dict.fromkeys((one.about, one.network) for one in lines))
    if not panels:
        return []

    def draw(axes_of: Sequence[Axes], form: Form) -> None:
        for axes, (about, network) in zip(axes_of, panels, strict=True):
            for one in lines:
                if (one.about, one.network) == (about, network):
                    _draw(axes, one, form.colors["vermilion" if one.kind == "modelled" else "ink"])
            lines_of = [about.partition(", ")[2], *textwrap.wrap(network, TITLE_CHARACTERS)]
            axes.set_title("\n".join(lines_of))
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.set_ylabel("time [ms]")
        axes_of[-1].set_xlabel("rank")

    title = "time of an all-reduce over the rank, and its line"
    return write_plots([Plot("ranks", title, draw, (1.8,) * len(panels))], folder)


def _timed(one: RankLine) -> str:
    """What a line's times are, and on which network; beside real workers' times the clock's have the same."""
    return one.network if one.network.startswith(one.kind) else f"{one.kind} beside {one.network}"


def _draw(axes: Axes, one: RankLine, color: str) -> None:
    ranks = sorted(one.times)
    ends = [0, ranks[-1]]
    axes.plot(ends, [1e3 * one.line.at(rank) for rank in ends], color=color, lw=0.9, label="_")
    milliseconds = [1e3 * one.times[rank] for rank in ranks]
    axes.plot(ranks, milliseconds, color=color, ls="", marker="o", ms=3.5, label=one.kind)


def _times(by_rank: Mapping[int, AllReduceSummary]) -> dict[str, dict[int, float]]:
    """The median seconds by rank, as measured, if all were, and on the simulated clock."""
    real = {rank: run.measured.median for rank, run in by_rank.items() if run.measured is not None}
    found: dict[str, dict[int, float]] = {}
    if len(real) == len(by_rank):
        found[next(iter(by_rank.values())).kind] = real
    return found | {"modelled": {rank: run.modelled.median for rank, run in by_rank.items()}}

"""Plots a step of a pipeline: the passes of each stage over time, and its synchronization (EDGC Fig. 8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.harness.record.runs import Run
from gradwire.harness.report.bandwidth_plot import TIME_UNITS, unit_for
from gradwire.harness.report.bar_rows import AXIS_HEIGHT
from gradwire.harness.report.figures import WIDTH, Plot
from gradwire.harness.report.series import UNNAMED, Bars, Panel, series_plot
from gradwire.harness.report.style import Filling, Form, Hue
from gradwire.harness.report.views import row_names, x_from, y_from
from gradwire.harness.timing.trace.step import (
    PHASES,
    Compute,
    Post,
    RankTrace,
    StepTrace,
    TaskTrace,
    stage_pass_of,
    step_end,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_HEIGHT, PASS_HEIGHT, BAR_HEIGHT = 0.34, 0.17, 0.07
"""Inches of a stage's row, of its passes, and of the bars below them."""
DIGIT_WIDTH, DIGIT_SIZE, NAMES_WIDTH = 0.045, 5, 0.6
"""Inches of a digit, its size in points, and inches to the left of the time axis."""

FILLINGS = {
    "forward": Filling("forward", "blue", ""),
    "backward": Filling("backward", "orange", ""),
    "other": Filling("other computation", "grey", ""),
    "synchronization": Filling("synchronizes gradients", "green", "////"),
}
DIGITS: dict[str, Hue | None] = {"forward": None, "backward": "ink"}
"""The colour of a pass's micro-batch; None: the ground's."""


class Stretch(NamedTuple):
    """An activity of a stage from `start` to `end`, in seconds of the step; `number` is a pass's micro-
    batch.
    """

    kind: str
    start: float
    end: float
    number: int | None = None


@dataclass(frozen=True)
class ShownStage:
    """A stage of one replica."""

    computed: tuple[Stretch, ...]
    synchronized: tuple[Stretch, ...]

    @classmethod
    def of(cls, trace: RankTrace) -> ShownStage:
        tasks = (_synchronization(task) for task in trace.tasks)
        return cls(tuple(_computed(trace)), tuple(task for task in tasks if task is not None))


def pipeline_of(run: Run, heading: str, numbers: Sequence[int], steps: Sequence[StepTrace]) -> Plot | None:
    """The first of these steps of the run's first replica, a row for each stage; None for other runs."""
    stages, trace = int(run.config["parallel"].get("stages", 0)), steps[0]
    if not stages or len(trace) % stages:
        return None
    replicas = len(trace) // stages
    shown = [ShownStage.of(trace[stage * replicas]) for stage in range(stages)]
    if not any(one.number is not None for stage in shown for one in stage.computed):
        return None
    end = step_end(trace)
    unit = unit_for(TIME_UNITS, end, at_least=2.0)
    label = f"time in step {numbers[0]} [{unit}]; numbers are micro-batches"
    panel = replace(_panel(shown, end, TIME_UNITS[unit]), x_label=label)
    return series_plot("pipeline", heading, [panel], (AXIS_HEIGHT + ROW_HEIGHT * stages,))


def _computed(trace: RankTrace) -> Iterator[Stretch]:
    """The computation of a rank, with segments of one pass merged."""
    label, under_way = "", None
    for one in trace.computation:
        if not isinstance(one, Compute) or one.end <= one.start:
            continue
        found = stage_pass_of(one.label)
        if under_way is not None and found is not None and one.label == label:
            under_way = under_way._replace(end=one.end)
            continue
        if under_way is not None:
            yield under_way
        kind, number = found or ("other", None)
        label, under_way = one.label, Stretch(kind, one.start, one.end, number)
    if under_way is not None:
        yield under_way


def _synchronization(task: TaskTrace) -> Stretch | None:
    """The interval from the first work or message to the last; None if the task is not the synchronization of
    a bucket."""
    if not any(isinstance(one, Post) and one.phase in PHASES for one in task.operations):
        return None
    first = task.operations[0]
    start = first.at if isinstance(first, Post) else first.start
    return Stretch("synchronization", start, task.end)


def _panel(stages: Sequence[ShownStage], end: float, seconds: float) -> Panel:
    """Passes in a row for each stage, synchronizations below them; the first of a kind names it."""
    centers = [ROW_HEIGHT * (stage + 0.4) for stage in range(len(stages))]
    bars, kinds, numbers = list[Bars](), set[str](), list[tuple[Stretch, float]]()
    for stage, center in zip(stages, centers, strict=True):
        below = center + (PASS_HEIGHT + BAR_HEIGHT) / 2
        for middle, height, own in (
            (center, PASS_HEIGHT, stage.computed),
            (below, BAR_HEIGHT, stage.synchronized),
        ):
            for one in own:
                filling = FILLINGS[one.kind]
                name = UNNAMED if one.kind in kinds else filling.label
                kinds.add(one.kind)
                width, start = seconds * (one.end - one.start), seconds * one.start
                bars.append(Bars([middle], [width], filling, height, [start], name))
            numbers += [(one, middle) for one in own if one.number is not None]

    def view(axes: Axes, form: Form) -> None:
        axes.tick_params(axis="y", length=0)
        for one, middle in numbers:
            if one.end - one.start > DIGIT_WIDTH * len(str(one.number)) * end / (WIDTH - NAMES_WIDTH):
                hue = DIGITS[one.kind]
                look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": DIGIT_SIZE}
                look["color"] = form.ground if hue is None else form.colors[hue]
                axes.text(seconds * (one.start + one.end) / 2, middle, str(one.number), **look)

    names = row_names(centers, [f"stage {stage}" for stage in range(len(stages))])
    limits = (y_from(ROW_HEIGHT * len(stages), 0), x_from(0, seconds * end))
    return Panel(bars, views=[names, view, *limits])

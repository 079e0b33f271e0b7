"""`task=timeline run=<folder>`: steps of a run as timelines, and the bytes sent over time."""

from __future__ import annotations

import sys
from pathlib import Path

from gradwire.harness.config.tasks import TimelineTask
from gradwire.harness.files.reading import refuse_links
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import DirectoryLock
from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.record.seal import refuse_links_in
from gradwire.harness.record.timed_steps import is_simulated, recorded, steps_of
from gradwire.harness.report.bandwidth_plot import bandwidth_of, chosen_steps, steps_in_words
from gradwire.harness.report.figures import write_plots
from gradwire.harness.report.groups import run_title
from gradwire.harness.report.pipeline_plot import pipeline_of
from gradwire.harness.tasks.sync import records
from gradwire.harness.timing.simulate.compute import as_settings, measured_blocks
from gradwire.harness.timing.trace.chrome import chrome_text
from gradwire.harness.timing.trace.step import StepTrace

FOLDER = "timeline"


def run(config: TimelineTask) -> int:
    """Writes the timelines of every record that `run=` names to its directory; returns 1 if one has none."""
    first, count = config.timeline.step, config.timeline.steps
    shown = [_show(directory, first, count) for directory in records(config.run)]
    return int(not all(shown))


def _show(directory: Path, first: int | None, count: int) -> bool:
    try:
        lock = DirectoryLock(directory)  # the trace of a running run has no end yet
        try:
            refuse_links_in(directory)
            found = load_run(directory)
            have = recorded(found)
            steps = dict(steps_of(found, chosen_steps(found, count, first, have)))
            if have.damage is not None:
                print(f"note: {have.damage}", file=sys.stderr, flush=True)
            _write(found, steps)
        finally:
            lock.release()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _write(found: Run, steps: dict[int, StepTrace]) -> None:
    clock = "simulated" if is_simulated(found) else "wall"
    folder = found.folder / FOLDER
    refuse_links(folder, found.folder, remedy="put the folder there itself")
    folder.mkdir(exist_ok=True)
    for number, trace in steps.items():
        path = folder / f"step{number}.json"
        write_atomically(path, chrome_text(trace, run=found.name, step=number, clock=f"{clock} clock"))
        print(path)
    state = f"{found.name} · {found.network} · {found.status}"
    title = run_title(found) if found.summary is not None else state
    kinds = (bandwidth_of, pipeline_of)
    plots = [kind(found, title, list(steps), list(steps.values())) for kind in kinds]
    for path in write_plots(plots, found.folder / "plots"):
        print(path)
    print(_summary(found, steps, clock), flush=True)
    if blocks := measured_blocks(steps.values()):
        print(f"its blocks on average, for network=simulated: {as_settings(blocks)}", flush=True)


def _summary(found: Run, steps: dict[int, StepTrace], clock: str) -> str:
    numbers, size = list(steps), len(next(iter(steps.values())))
    which = steps_in_words(numbers)
    length_s = sum(max(own.end for own in trace.values()) for trace in steps.values()) / len(steps)
    return (
        f"{found.name}: {which} of {size} ranks, {1e3 * length_s:.1f} ms each on the {clock} clock; "
        "open the .json files in Perfetto (ui.perfetto.dev) or chrome://tracing"
    )

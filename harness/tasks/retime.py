"""`task=retime`: a finished run on another network: its time to accuracy and breakdown, without training."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.codecs.plugins import ENTRY_POINTS, load, plugins_of
from gradwire.harness.comm.nodes import check_placement
from gradwire.harness.comm.settings import MOST_COMMUNICATORS
from gradwire.harness.config.effects import READ_WITH
from gradwire.harness.config.given_files import check_compute
from gradwire.harness.config.network_checks import check_codec_times, check_spread, resolve_nodes
from gradwire.harness.config.tasks import RetimeConfig, RetimeTask
from gradwire.harness.files.reading import file_digest
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.network.settings import FROM_FILE, MEASURED, NetworkConfig, ShapedConfig
from gradwire.harness.record.directory import CONFIG, EVALUATIONS, PROFILE, STEPS, SUMMARY, found_profiles
from gradwire.harness.record.identity import FILES, settings_id
from gradwire.harness.record.profiles import (
    Profile,
    count_profile,
    in_summary,
    keep_profile,
    own_profile,
    read_profiles,
)
from gradwire.harness.record.row_file import append_rows
from gradwire.harness.record.runs import Run, load_run, not_finished
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.record.timed_steps import recorded, traced_run
from gradwire.harness.record.writer import as_yaml
from gradwire.harness.report.configs import RETIMED_AXES
from gradwire.harness.runtime.effects import check_read_settings
from gradwire.harness.studies.once import run_once
from gradwire.harness.timing.simulate.engine import require_engine
from gradwire.harness.timing.trace.files import FOLDER, RecordedSteps, read_traces, trace_file
from gradwire.harness.timing.trace.step import Post
from gradwire.harness.timing.trace.writer import sampling
from gradwire.harness.trainer.calibration import ProfileIds

if TYPE_CHECKING:
    from gradwire.harness.record.summary import Summary
    from gradwire.harness.report.compare import Comparison

LARGEST_GAP = 0.1
"""The largest share of a run's steps in a row without a trace; beyond it, times would be those of another
part of the run."""


def resolve(config: RetimeTask) -> RetimeTask:
    """Fills in the source of the times; raises ValueError in one line if there is no such run, it has no
    times, or there is no simulated clock."""
    require_engine("task=retime")
    found = _source(config)
    if config.network.name == "shaped":
        raise ValueError("network=shaped is measured, not worked out; use network=simulated for task=retime")
    check_placement(found.setting("cluster", dict).get("ranks_per_node"), config.network)
    if found.codec in ("backend", "native") and found.done.workers > 1:  # its name in earlier runs
        raise ValueError(
            f"run={config.run}: codec={found.codec} leaves its messages to the backend, so that it is "
            "not known when they were sent; retime a run of codec=bf16 or fp32"
        )
    if found.shares_device:
        raise ValueError(
            f"run={config.run}: its ranks shared a device, and so one another's time; retime a run of "
            "cluster=virtual"
        )
    if not (found.folder / FOLDER).is_dir():
        raise ValueError(f"run={config.run} keeps no trace; train it again with measure.trace=true")
    _check_covered(config.run, recorded(found), len(found.steps))
    for kind, plugin in plugins_of({kind: found.choice(kind) for kind in ENTRY_POINTS}).items():
        load(kind, plugin)  # refused before anything is written, unless the user has named it
    network = resolve_nodes(config.network, found.done.workers, given=False)
    check_codec_times(network, _codec(found), found.done.workers)
    network = check_compute(network, _virtual(found.config))
    parallel = found.choice("parallel") or "ddp"
    check_read_settings(READ_WITH, {**vars(config), "parallel": {"name": parallel}})
    check_spread(network, parallel, _num_blocks(found))
    digest = file_digest(found.folder / SUMMARY, remedy=REMEDY, inside=found.folder)
    return replace(config, network=network, retime=RetimeConfig(digest=digest[:12]))


def _virtual(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run's settings, as those of a virtual cluster."""
    return {**settings, "cluster": {**(settings.get("cluster") or {}), "name": "virtual"}}


def _profile(network: NetworkConfig, source: Run) -> Profile | None:
    """The profile that the clock counts instead of the run's measurements: the given profile, else the run's
    own."""
    if isinstance(network, ShapedConfig) or network.compute == MEASURED:
        return None
    if not network.compute.startswith(FROM_FILE):
        return own_profile(source.folder)
    given = network.compute.removeprefix(FROM_FILE)
    found = ProfileIds.of(source.config, network).chosen(read_profiles(found_profiles(Path(given))))
    return replace(found, source=f"file {given}")


def _num_blocks(found: Run) -> int | None:
    """The number of blocks of the run's passes; None if by none."""
    if found.choice("parallel") != "blocks":
        return None
    return len(found.setting("parallel.layers", list)) or found.setting("parallel.num_blocks", int)


def _check_covered(name: str, have: RecordedSteps, num_steps: int) -> None:
    """Raises ValueError if a tenth of the run or more has no step with a trace, since nothing represents
    it."""
    edges = [-1, *have.steps, num_steps]
    gap, start = max((after - before - 1, before + 1) for before, after in pairwise(edges))
    if gap > max(sampling(have.steps), num_steps * LARGEST_GAP):
        why = have.damage or "its trace ended there, or was cut"
        raise ValueError(
            f"run={name} keeps no trace of the {gap} steps from step {start} on ({why}); retime needs one of "
            "some step in every tenth of a run: train it again"
        )


def name(config: RetimeTask) -> str:
    """`retime-<the run's folder>`."""
    return f"retime-{Path(config.run).resolve().name}"


def run(config: RetimeTask, directory: Path) -> int:
    """Retimes, or shows the earlier result; the directory is that of a run on a simulated clock."""
    from gradwire.harness.report.run_plots import plot_run
    from gradwire.harness.tasks.train import show_run

    source = _source(config)
    if run_once(config, directory, partial(_retime, config, source, directory)):
        if config.plots:
            plot_run(load_run(directory), directory / "plots")
        before, after = source.done, load_run(directory).done
        lent = sum("trace_step" in row for row in load_run(directory).steps)
        if lent:
            print(
                f"note: {before.steps - lent} of {before.steps} steps have a trace; each other one takes the "
                "nearest one's (trace_step in steps.jsonl)"
            )
        print(
            f"{source.folder.name}: {before.train_time_s:.1f} s on its own clock ({before.clock}), "
            f"{after.train_time_s:.1f} s on this network"
        )
        if getattr(config.network, "multicast", False) and not _sends_copies(source):
            print(
                "note: network.multicast changes nothing here: in this run's trace no rank sends several the "
                "same bytes, as topology=broadcast does"
            )
    show_run(load_run(directory))
    return 0


def compare(folders: Sequence[Path], output: Path, axes: Sequence[str]) -> Comparison:
    """Makes a sweep's tables and plots, with runs and networks side by side."""
    from gradwire.harness.report import compare as report

    return report.compare(folders, output, axes=list(dict.fromkeys([*axes, *RETIMED_AXES])))


def _source(config: RetimeTask) -> Run:
    """The finished run that `run=` names."""
    folder = Path(config.run).expanduser()
    try:
        found = load_run(folder)
    except ValueError as error:
        problem = str(error).removeprefix(f"{folder} ")  # which the setting has named
        raise ValueError(f"run={config.run}: {problem}; use run=outputs/<run>") from None
    if found.status != "done":
        raise ValueError(f"run={config.run} {not_finished(found)}")
    return found


def _retime(config: RetimeTask, source: Run, directory: Path) -> None:
    from gradwire.harness.record.timed_steps import retimed_evaluations, retimed_steps
    from gradwire.harness.timing.simulate.build import make_clock

    size, buckets = source.done.workers, source.setting("overlap.buckets", int)
    on_gloo = source.setting("cluster.backend", str) == "gloo"
    clock = make_clock(
        config.network,
        size,
        in_flight=buckets if on_gloo else min(buckets, MOST_COMMUNICATORS),
        overlap=source.setting("overlap.enabled", bool),
        seed=source.setting("seed", int),
        codec=_codec(source),
    )
    profile = _profile(config.network, source)
    if profile is not None:
        keep_profile(directory / PROFILE, profile)
        count_profile(clock, profile)
    trace, owner = source.folder / FOLDER, traced_run(source)
    traces = read_traces(source.folder, size, set(recorded(source).steps), run=owner)
    steps = retimed_steps(source.steps, traces, clock, trace)
    evaluations = retimed_evaluations(source.evals, steps)
    described = _description(config, source)
    write_atomically(directory / CONFIG, as_yaml(described))
    append_rows(directory / STEPS, steps)
    append_rows(directory / EVALUATIONS, evaluations)
    _keep_trace(source.folder, directory, size)
    before = source.done
    summary = replace(
        _summary(described, source, steps, evaluations),
        profile=None if profile is None else in_summary(profile, clock.num_unknown),
        trace_of=owner,
        resumed_after=before.resumed_after,
        earlier_ends=before.earlier_ends,
    )
    write_atomically(directory / SUMMARY, summary.to_json())


def _sends_copies(source: Run) -> bool:
    """True if some rank sends copies in the run's first step."""
    first = {recorded(source).steps[0]}
    ((_, trace),) = read_traces(source.folder, source.done.workers, first, run=traced_run(source))
    tasks = [task for own in trace.values() for task in own.tasks]
    return any(isinstance(done, Post) and done.copies for task in tasks for done in task.operations)


def _codec(source: Run) -> dict[str, Any]:
    """The settings of the run's codec."""
    settings = source.setting("codec", dict)
    return {str(key): value for key, value in settings.items()}


def _keep_trace(source: Path, directory: Path, size: int) -> None:
    """Links, or else copies, the trace into the retimed run: a finished trace never changes.

    Takes only the ranks' files; links have been refused. After a failure the retimed run has no trace.
    """
    try:
        (directory / FOLDER).mkdir(exist_ok=True)
        for rank in range(size):
            path = trace_file(source, rank)
            try:
                os.link(path, directory / FOLDER / path.name, follow_symlinks=False)
            except OSError:
                shutil.copyfile(path, directory / FOLDER / path.name, follow_symlinks=False)
    except OSError as error:
        shutil.rmtree(directory / FOLDER, ignore_errors=True)
        print(f"note: {directory} keeps no trace ({error.strerror}); its times are complete")


def _description(config: RetimeTask, source: Run) -> dict[str, Any]:
    """The run's configuration as it would be for training on this network."""
    settings: dict[str, Any] = copy.deepcopy(dict(source.config))
    settings["network"] = asdict(config.network)
    settings["cluster"] = {**source.setting("cluster", dict), "name": "virtual"}
    return settings


def _without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without file paths, whose contents would be hashed for the run's id: a run directory
    from elsewhere may name any file."""
    found = copy.deepcopy(dict(config))
    for group, field, _ in FILES:
        if field and found.get(group, {}).get(field) is not None:
            found[group][field] = None
    return found


def _summary(
    config: Mapping[str, Any],
    source: Run,
    steps: Sequence[dict[str, Any]],
    evaluations: Sequence[dict[str, Any]],
) -> Summary:
    from gradwire.harness.comm.topology.registry import make_schedule
    from gradwire.harness.trainer.summarize import RunTotals, summarize

    before, settings = source.done, _without_places(config)
    nodes = before.workers // (config["cluster"].get("ranks_per_node") or before.workers)
    totals = RunTotals(
        metric=before.metric,
        clock="simulated",
        wall_time_s=before.wall_time_s,
        bytes_by_rank=before.bytes_sent_per_rank,
        bytes_by_phase=before.bytes_by_phase,
        num_coordinates=before.num_coordinates,
        gradients_sent=make_schedule(config["topology"]["name"], before.workers, nodes).gradients_sent,
        layout_hash=before.layout_hash,
        data=before.data,
    )
    return summarize(settings, settings_id(settings), steps, evaluations, totals)

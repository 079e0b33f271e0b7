"""Notes on the interpretation of a comparison's figures, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.harness.network.configured import whose_computation
from gradwire.harness.record.busy import LEAST_OTHERS
from gradwire.harness.record.identity import computation_id
from gradwire.harness.record.runs import Run
from gradwire.harness.report.evaluation import BASELINE
from gradwire.harness.report.group_rows import GroupRow
from gradwire.harness.report.groups import Group, shared
from gradwire.harness.report.tables import number


def notes(rows: Sequence[GroupRow], groups: Sequence[Group]) -> list[str]:
    """Every note that applies; `rows` and `groups` belong together, in the same order."""
    runs = [run for group in groups for run in group.runs]
    return [
        *_subject(groups),
        *_networks(rows),
        *_targets(rows),
        *_seeds(rows),
        *_reading(rows),
        *_loopback(rows, groups),
        *computation_notes(runs),
        *_provenance(runs),
    ]


def _subject(groups: Sequence[Group]) -> list[str]:
    """The models that were trained: a name such as llama1b says nothing of the size."""
    common = shared(groups)
    return [f"All runs: {' · '.join(common)}."] if common else []


def _networks(rows: Sequence[GroupRow]) -> list[str]:
    """The links, and whether times on them are measured, emulated or modelled; by row if they differ."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.network, []).append(row.label)
    if len(found) == 1:
        return [f"Network: {next(iter(found))}."]
    return [f"Network of {'; '.join(whose)}: {text}." for text, whose in found.items()]


def _targets(rows: Sequence[GroupRow]) -> list[str]:
    """The origin of the targets, or the reason why there are none."""
    lines = {}
    for row in rows:
        if row.targets:
            values = ", ".join(f"×{item.factor:g} = {number(item.target)}" for item in row.targets)
            lines[row.baseline] = f"Targets, from the median final metric of {row.baseline}: {values}."
    without = [row.label for row in rows if not row.targets]
    if not lines:
        return [f"No time to accuracy: no finished {BASELINE} run sets the targets."]
    if without:
        lines[None] = f"No time to accuracy for {'; '.join(without)}: no {BASELINE} run sets their targets."
    return list(lines.values())


def _seeds(rows: Sequence[GroupRow]) -> list[str]:
    """The significance of figures, given the number of seeds."""
    lines = ["Figures are the median over seeds, with the range from the lowest to the highest."]
    single = [row.label for row in rows if row.num_seeds == 1]
    if single:
        whose = "" if len(single) == len(rows) else f" for {'; '.join(single)}"
        lines.append(
            f"One seed only{whose}: it shows costs (time, bytes, error) and says nothing about accuracy, "
            "since how far seeds lie apart is unknown."
        )
    sets = {tuple(sorted(map(str, row.seeds + row.failed_seeds))) for row in rows}
    if len(sets) > 1:
        used = "; ".join(f"{row.label}: {_listed(row.seeds + row.failed_seeds)}" for row in rows)
        lines.append(f"The seeds are not the same everywhere ({used}): tests pair the shared ones.")
    return lines


def _reading(rows: Sequence[GroupRow]) -> list[str]:
    """The meaning of the marks that occur."""
    targets = [target for row in rows for target in row.targets]
    lines = []
    if any(target.stays is False for target in targets):
        lines.append("*: a later evaluation of one of the seeds fell back past the target.")
    if any(0 < target.reached < row.num_seeds for row in rows for target in row.targets):
        lines.append("k/n: k of n seeds reached the target; the others enter the median as infinity (∞).")
    if any(skipped.high for row in rows if (skipped := row.figures["skipped_steps"]) is not None):
        lines.append("Steps skipped: their gradients were not finite, so that nothing was updated.")
    if any(target.p_faster is not None for target in targets):
        lines.append(
            "p: exact one-sided paired sign-flip test on ranks over the shared seeds; "
            "n seeds cannot give less than 2^-n."
        )
    if any(row.figures["overlap_s"] for row in rows):
        lines.append(
            "ROW: communication hidden behind computation (the rank that hides least) over the time "
            "computation waits for gradients (the rank that waits longest; ∞: none waits). OSF: step time "
            "without communication divided by the actual one."
        )
    if any(row.clock == "simulated" for row in rows):
        lines.append("Simulated times rest on a network model; they are not measurements of a network.")
    return lines


def _loopback(rows: Sequence[GroupRow], groups: Sequence[Group]) -> list[str]:
    """A note that compression costs time here because links do not limit the transfer."""
    by_label = {row.label: row for row in rows}
    slower = []
    for row, group in zip(rows, groups, strict=True):
        reference = by_label.get(row.baseline or "")
        raw = row.clock == "wall" and group.named("network") in (None, "none")
        own = row.figures["step_time_s"]
        other = None if reference is None else reference.figures["step_time_s"]
        if not raw or own is None or other is None:
            continue
        extra = own.median / other.median - 1
        if extra > 0 and row.bytes_ratio is not None and row.bytes_ratio < 1:
            slower.append(f"{row.label} +{extra:.0%}")
    if not slower:
        return []
    return [f"On a raw loopback compression does not pay: step time over {BASELINE}'s: {'; '.join(slower)}."]


def _provenance(runs: Sequence[Run]) -> list[str]:
    """Differences between the runs that do not prevent a comparison but may matter."""
    lines = []
    if len({run.done.code_hash for run in runs}) > 1:
        lines.append("The runs come from different versions of the sources (code_hash).")
    if any(run.done.dirty for run in runs):
        lines.append("Some runs come from sources with uncommitted changes.")
    backends = sorted({run.done.kernel_backend for run in runs})
    if len(backends) > 1:
        lines.append(f"The runs used different kernels: {', '.join(backends)}.")
    return lines


def _listed(seeds: Sequence[int | None]) -> str:
    return ", ".join(map(str, seeds))


CUSTOM = "custom"
"""The preset of a simulated network that does not describe a paper's testbed."""

CURE = "network.compute=file:<profile> gives all the same"


def computation_notes(runs: Sequence[Run]) -> list[str]:
    """Notes on the computation times in simulated times, one line each."""
    virtual = [run for run in runs if run.choice("cluster") == "virtual"]
    measured = [run for run in virtual if (run.config.get("network") or {}).get("compute_s") is None]
    return [*_unlimited(virtual), *_testbeds(virtual), *_shared(measured), *_apart(measured)]


def _unlimited(runs: Sequence[Run]) -> list[str]:
    if not any(run.choice("network") == "none" and run.workers > 1 for run in runs):
        return []
    return [
        "Links are unlimited, so that compression can only cost time; network=simulated gives them a rate "
        "(network.rate_mbit=200)."
    ]


def _testbeds(runs: Sequence[Run]) -> list[str]:
    lines = dict[str, None]()
    for run in runs:
        network, cluster = (run.config.get(name) or {} for name in ("network", "cluster"))
        if network.get("preset", CUSTOM) == CUSTOM:
            continue
        whose = whose_computation(network, cluster.get("device"))
        more = ", not the testbed's" if whose.startswith("this machine") else ""
        lines[f"Links of a paper's testbed ({network['preset']}); computation: {whose}{more}."] = None
    return list(lines)


def _shared(runs: Sequence[Run]) -> list[str]:
    """The profiles that runs have used."""
    lines = dict[str, None]()
    for profile in (run.done.profile for run in runs if run.done.profile is not None):
        spread = profile.get("compute_s") or {}
        if {"p10", "median", "p90"} <= spread.keys():
            low, middle, high = (1e3 * float(spread[key]) for key in ("p10", "median", "p90"))
            taken = float(profile.get("taken") or 0.0)
            busy = (
                f" Others took {taken:.0%} of its CPUs meanwhile, so that times may be longer than on an "
                "idle machine; all runs count the same computation, so that their order stands."
                if taken >= LEAST_OTHERS
                else ""
            )
            lines[
                "Computation: calibrated once for all runs that compute the same (p10, median, p90 of a step "
                f"meanwhile: {low:.3g}, {middle:.3g}, {high:.3g} ms), on {profile.get('processor')}.{busy}"
            ] = None
    return list(lines)


def _apart(runs: Sequence[Run]) -> list[str]:
    """Runs with the same computation that have not used the same times for it."""
    groups = dict[str, list[Run]]()
    for run in runs:
        groups.setdefault(computation_id(run.config), []).append(run)
    lines = []
    for group in (group for group in groups.values() if len(group) > 1):
        counted = [(run.done.profile or {}).get("computation") for run in group]
        own = sum(one is None for one in counted)
        if own == len(group):
            lines.append(
                f"Each of {own} runs that compute the same measured its computation for itself: their times "
                f"differ by what else the machine did, too ({CURE})."
            )
        elif len(set(counted)) > 1:
            lines.append(
                f"{len(group)} runs that compute the same count {len(set(counted))} different profiles of it"
                f"{f' ({own} what each step took)' if own else ''}: their times differ by that, too "
                f"({CURE})."
            )
    return lines

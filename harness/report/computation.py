"""Whose computation simulated times count, and whether runs that compare count the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.harness.network.settings import FROM_FILE, PAPERS_COMPUTATION, SHARED
from gradwire.harness.record.busy import LEAST_OTHERS
from gradwire.harness.record.computation import computation_id
from gradwire.harness.record.runs import Run

CUSTOM = "custom"
"""The preset of a simulated network that is no paper's testbed."""

CURE = "network.compute=file:<profile> gives all the same"


def whose_computation(network: Mapping[str, Any], device: str | None, *, shared: bool = False) -> str:
    """`this machine's CPU, measured`, or that it is given: of a virtual cluster on this network.

    `shared`: the run counts its sweep's profile.
    """
    given = network.get("compute_s")
    papers = [
        compute_s
        for (preset, _), (compute_s, _) in PAPERS_COMPUTATION.items()
        if preset == network.get("preset")
    ]
    if given in papers:
        return f"the paper's, {given:g} s a step"
    if given is not None:
        return f"given, {given:g} s a step (network.compute_s)"
    if str(network.get("compute", SHARED)).startswith(FROM_FILE):
        return "a given profile (network.compute)"
    how = "calibrated once for the sweep" if shared else "measured"
    return f"this machine's {'GPU' if device == 'cuda' else 'CPU'}, {how}"


def computation_notes(runs: Sequence[Run]) -> list[str]:
    """A line for each thing that a reader must know of the computation in simulated times."""
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
    """What the profiles say that runs have counted."""
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
    """Runs that compute the same and did not count the same."""
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

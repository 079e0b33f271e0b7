"""What the words around a plot say: what its groups share, on which clock, and over how many seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradwire.harness.record.runs import Run
from gradwire.harness.report.groups import Group, group_runs


def title(groups: Sequence[Group], over_seeds: str = "") -> str:
    """What all groups share, and how many seeds they have; `over_seeds` says what is shown of these.

    A group by itself needs no legend, so it is named here.
    """
    name = [groups[0].label] if len(groups) == 1 else []
    return " · ".join([*name, *shared(groups), _seeds(groups, over_seeds)])


def run_title(run: Run) -> str:
    return " · ".join([run.codec, *shared(group_runs([run])), f"seed {run.seed}"])


def shared(groups: Sequence[Group]) -> list[str]:
    """Model and size, dataset, topology, workers and clock, as far as they are the same in all groups."""
    names = [_models(groups), *({group.named(kind) for group in groups} for kind in ("dataset", "topology"))]
    workers = {run.done.workers for group in groups for run in group.runs}
    names.append({f"{count} worker{'s' * (count > 1)}" for count in workers})
    names.append({f"{group.clock} clock" for group in groups})
    return [str(next(iter(found))) for found in names if len(found) == 1 and None not in found]


def _models(groups: Sequence[Group]) -> set[str | None]:
    """`llama1b, size=tiny, 1.1M parameters` for each kind of model, less where groups share only its name."""
    for parts in ((True, True), (True, False), (False, False)):
        found = {_model(group, *parts) for group in groups}
        if len(found) == 1:
            break
    return found


def _model(group: Group, with_size: bool, with_count: bool) -> str | None:
    name, size = group.named("model"), group.named("size")
    if name is None:
        return None
    counts = {run.done.num_coordinates for run in group.runs} - {0}
    text = name if size is None or not with_size else f"{name}, size={size}"
    return f"{text}, {count_parameters(counts.pop())}" if with_count and len(counts) == 1 else text


def count_parameters(count: int) -> str:
    """`941k parameters`, `1.15M parameters`, `1.24B parameters`: three digits, as models are named."""
    rounded = float(f"{count:.3g}")
    for factor, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if rounded >= factor:
            return f"{rounded / factor:g}{unit} parameters"
    return f"{count} parameters"


def in_legend(group: Group, groups: Sequence[Group]) -> str:
    """A group's label, with its seeds where the groups differ in their number or one did not end well."""
    diverged = sum(not math.isfinite(run.done.final_metric) for run in group.runs)
    remarks = [f"{len(group.failed)} failed"] * bool(group.failed) + [f"{diverged} diverged"] * bool(diverged)
    if len({other.num_seeds for other in groups}) > 1 or remarks:
        remarks.insert(0, count_seeds(group.num_seeds))
    return f"{group.label} ({', '.join(remarks)})" if remarks else group.label


def count_seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _seeds(groups: Sequence[Group], over_seeds: str) -> str:
    counts = [group.num_seeds for group in groups]
    few, many = min(counts), max(counts)
    number = count_seeds(many) if few == many else f"{few} to {count_seeds(many)}"
    return f"{number}: {over_seeds}" if over_seeds and many > 1 else number

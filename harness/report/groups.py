"""Groups of runs that differ only in the seed, and texts for plots of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from gradwire.harness.network.configured import common_text
from gradwire.harness.record.directory import EVALUATIONS
from gradwire.harness.record.runs import Run
from gradwire.harness.record.summary import Clock
from gradwire.harness.report.configs import SEED, Settings, covered, labels, labels_in_words, settings
from gradwire.harness.report.evaluation import Curves, baseline_among, sets_targets
from gradwire.harness.report.frame import Value, values_of
from gradwire.harness.report.names import name_of
from gradwire.harness.timing.measure.accuracy import Mode, metric_mode


@dataclass(frozen=True)
class Group:
    """The seeds of one cell of a sweep: `runs` done, by seed, and those that failed.

    A failed run counts as a miss: in medians of times to targets and of final metrics it has the worst value.
    """

    label: str
    settings: Settings  # without the seed
    runs: list[Run]
    failed: list[Run]
    words: str  # its label in the words of the field, for pictures

    @property
    def codec(self) -> str:
        return self._any.codec

    @property
    def is_baseline(self) -> bool:
        return sets_targets(self)

    @property
    def clock(self) -> Clock | None:
        return self.runs[0].clock if self.runs else None

    @property
    def network(self) -> str:
        """Its links and the kind of times on them, in words."""
        return self._any.network

    @property
    def metric(self) -> str | None:
        return self.runs[0].done.metric if self.runs else None

    @property
    def done_metric(self) -> str:
        """The metric of a group known to have a run that is done."""
        assert self.metric is not None, f"{self.label}: no run is done"
        return self.metric

    @property
    def mode(self) -> Mode:
        return metric_mode(self.metric or "loss")

    @property
    def num_seeds(self) -> int:
        return len(self.runs) + len(self.failed)

    @property
    def _any(self) -> Run:
        return (self.runs or self.failed)[0]

    def named(self, config_group: str) -> str | None:
        """The choice of another config group, such as `topology`."""
        return self._any.choice(config_group)

    @cached_property
    def values(self) -> list[Value]:
        """The lines of its runs in the results frame."""
        return [value for run in self.runs for value in values_of(run)]

    def by_seed(self, metric: str) -> dict[int | None, float]:
        """A figure of its whole runs."""
        whole = (value for value in self.values if not value.case and value.step is None)
        return {value.seed: value.value for value in whole if value.metric == metric}

    @cached_property
    def curves(self) -> Curves:
        """The evaluations of its metric by seed; raises ValueError for a run that did not evaluate it."""
        for run in self.runs:
            for row in run.evals:
                if not isinstance(row.get(self.done_metric), int | float):
                    known = f"{EVALUATIONS}, which has {', '.join(sorted(row))}"
                    raise ValueError(f"{run.name}: no metric {self.metric!r} in {known}")
        seeds = {str(run.folder): run.seed for run in (*self.runs, *self.failed)}
        return Curves.of(self.values, self.metric or "", seeds, self.mode)


def group_runs(runs: Sequence[Run], axes: Sequence[str] = ()) -> list[Group]:
    """Groups of done and failed runs, the baseline's first, then in the order given.

    Raises ValueError when two done runs are the same experiment, seed included.
    """
    cells: dict[str, list[Run]] = {}
    for run in runs:
        if run.status != "unfinished":
            cells.setdefault(repr(sorted(_without_seed(run).items())), []).append(run)
    configs = [_without_seed(members[0]) for members in cells.values()]
    groups = []
    named = zip(labels(configs, axes), labels_in_words(configs, axes), strict=True)
    for (label, words), config, members in zip(named, configs, cells.values(), strict=True):
        done = sorted((run for run in members if run.status == "done"), key=lambda run: run.seed or 0)
        _check_seeds(done)
        seeds = {run.seed for run in done}
        # A seed that was run again after a failure counts once, with its last outcome.
        failed = [run for run in members if run.status == "failed" and run.seed not in seeds]
        if {run.clock for run in done} == {"wall", "simulated"}:
            raise ValueError(
                f"{label}: some runs use the wall clock, others the simulated clock; compare them separately"
            )
        groups.append(Group(label, config, done, failed, words))
    return sorted(groups, key=lambda group: not group.is_baseline)


def baseline_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """The baseline's runs on the same clock that a group is compared with."""
    candidates = [other for other in groups if other.is_baseline and other.runs]
    if group.runs:
        candidates = [other for other in candidates if other.clock == group.clock]
    return baseline_among(group, candidates)


def _without_seed(run: Run) -> Settings:
    return {key: value for key, value in settings(run).items() if not covered(key, (SEED,))}


def _check_seeds(done: Sequence[Run]) -> None:
    for before, after in pairwise(done):
        if before.seed == after.seed:
            raise ValueError(
                f"{before.name} and {after.name} are the same experiment with seed {after.seed}: "
                "compare one of them"
            )


def title(groups: Sequence[Group], over_seeds: str = "") -> str:
    """The settings that all groups share, their networks and number of seeds; `over_seeds` describes how
    these are combined.

    A single group needs no legend, so it is named here.
    """
    name = [groups[0].words] if len(groups) == 1 else []
    return " · ".join([*name, *shared(groups), networks(groups), _seeds(groups, over_seeds)])


def run_title(run: Run) -> str:
    return " · ".join(
        [name_of("codec", run.codec), *shared(group_runs([run])), run.network, f"seed {run.seed}"]
    )


def networks(groups: Sequence[Group]) -> str:
    """The network of all groups in words; for several networks their common description, by kind."""
    return common_text(group.network for group in groups)


def shared(groups: Sequence[Group]) -> list[str]:
    """Model and size, dataset, topology and workers, in words, if they are the same in all groups."""
    kinds = ("dataset", "topology")
    names = [_models(groups), *({_choice(group, kind) for group in groups} for kind in kinds)]
    workers = {run.done.workers for group in groups for run in group.runs}
    names.append({f"{count} worker{'s' * (count > 1)}" for count in workers})
    return [str(next(iter(found))) for found in names if len(found) == 1 and None not in found]


def _choice(group: Group, kind: str) -> str | None:
    name = group.named(kind)
    return None if name is None else name_of(kind, name)


def _models(groups: Sequence[Group]) -> set[str | None]:
    """`Gemma 1B, size tiny, 1.1M parameters` for each kind of model, less where groups share only its
    name."""
    for parts in ((True, True), (True, False), (False, False)):
        found = {_model(group, *parts) for group in groups}
        if len(found) == 1:
            break
    return found


def _model(group: Group, with_size: bool, with_count: bool) -> str | None:
    name, size = _choice(group, "model"), group.named("size")
    if name is None:
        return None
    counts = {run.done.num_coordinates for run in group.runs} - {0}
    text = name if size is None or not with_size else f"{name}, size {size}"
    if not with_count or len(counts) != 1:
        return text
    copied = ", the tied embedding in two stages" if any(map(_has_copy, group.runs)) else ""
    return f"{text}, {count_parameters(counts.pop())}{copied}"


def _has_copy(run: Run) -> bool:
    """Returns whether the coordinates of a run's gradients have a tied embedding twice: the last stage of a
    pipeline has a copy of the first one's."""
    model, parallel = (run.config.get(name) or {} for name in ("model", "parallel"))
    return (
        run.choice("parallel") == "pipeline"
        and bool(model.get("tie_embeddings"))
        and (parallel.get("stages") or 1) > 1
    )


def count_parameters(count: int) -> str:
    """`941k parameters`, `1.15M parameters`, `1.24B parameters`: three digits, as models are named."""
    rounded = float(f"{count:.3g}")
    for factor, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if rounded >= factor:
            return f"{rounded / factor:g}{unit} parameters"
    return f"{count} parameters"


def in_legend(group: Group, groups: Sequence[Group]) -> str:
    """A group's label in words, with its seeds if groups differ in their number or one of them failed."""
    diverged = sum(not math.isfinite(run.done.final_metric) for run in group.runs)
    remarks = [f"{len(group.failed)} failed"] * bool(group.failed) + [f"{diverged} diverged"] * bool(diverged)
    if len({other.num_seeds for other in groups}) > 1 or remarks:
        remarks.insert(0, count_seeds(group.num_seeds))
    return f"{group.words} ({', '.join(remarks)})" if remarks else group.words


def count_seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _seeds(groups: Sequence[Group], over_seeds: str) -> str:
    counts = [group.num_seeds for group in groups]
    few, many = min(counts), max(counts)
    number = count_seeds(many) if few == many else f"{few} to {count_seeds(many)}"
    return f"{number}: {over_seeds}" if over_seeds and many > 1 else number

"""EDGC's dynamic alignment compressor: ranks that follow entropies, window by window (EDGC §IV-D).

A decision says whether gradients are compressed, and to which rank for each shape of matrices in each stage.
A `RankPlan` is a decision in typed form.

A decision is the same on all ranks of all stages, so that it can be logged, kept and replayed as one.

A shape's rank is the one that keeps its error constant (`quantification`); it changes by at most the step
limit and stays within bounds (Algorithm 1). Compression begins after a warm-up, with the largest rank. The
stage that ends its backward passes last sets the pace: earlier ones have time for larger ranks (Algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from gradwire.codecs.adaptation import Numbers
from gradwire.codecs.edgc.quantification import updated_rank
from gradwire.codecs.interface import Decision
from gradwire.codecs.options.reduced import Alignment, Reference


@dataclass(frozen=True)
class Control:
    """The matrices of one shape in one stage: `count` of them, compressed to `rank`.

    `entropy` [nats] and `zeros`, the share of exact zeros, are the means of their latest window. The rank is
    chosen so that the error equals that of `reference_rank` at `reference_entropy`. An entropy is −∞ until it
    is known.
    """

    stage: int
    rows: int
    columns: int
    count: int
    rank: int
    entropy: float
    zeros: float
    reference_rank: int
    reference_entropy: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def numel(self) -> int:
        return self.rows * self.columns * self.count


@dataclass(frozen=True)
class RankPlan:
    """The plan that a step follows.

    `max_rank` is the run's largest rank, 0 until it is known. If ranks depend on measured times, these are a
    model `seconds_per_rank`·r + `seconds` of the communication of the first stage, its mean error
    `model_error` relative to what was measured, the time `uncompressed_s` of uncompressed gradients, and
    `backward_s`, the mean time of a micro-batch backward through a stage. Without a clock they are 0.
    """

    compressing: int = 0
    max_rank: int = 0
    seconds_per_rank: float = 0.0
    seconds: float = 0.0
    model_error: float = 0.0
    uncompressed_s: float = 0.0
    backward_s: float = 0.0
    controls: tuple[Control, ...] = ()

    def decision(self) -> Decision:
        """The plan as numbers and lists of numbers by name."""
        found: dict[str, float | Sequence[float]] = {
            field.name: getattr(self, field.name) for field in _NUMBERS
        }
        return found | {name: [getattr(each, name) for each in self.controls] for name in _COLUMNS}

    @classmethod
    def of(cls, decision: Decision) -> RankPlan:
        """The inverse of `decision`."""
        values = cast(Mapping[str, Any], decision)
        rows = zip(*(values[name] for name in _COLUMNS), strict=True)
        controls = tuple(Control(**dict(zip(_COLUMNS, row, strict=True))) for row in rows)
        return cls(**{field.name: values[field.name] for field in _NUMBERS}, controls=controls)

    def rank(self, stage: int, shape: tuple[int, int]) -> int:
        """The rank of matrices of a shape; 0 if they go uncompressed."""
        if not self.compressing:
            return 0
        return next((each.rank for each in self.controls if (each.stage, each.shape) == (stage, shape)), 0)

    def figures(self) -> dict[str, float]:
        """Figures to log. A stage's rank is that of the shape with the most coordinates, its entropy
        and its share of zeros the means over its coordinates."""
        found: dict[str, float] = {"compressing": self.compressing, "max_rank": self.max_rank}
        if self.seconds_per_rank:
            found |= {"seconds_per_rank": self.seconds_per_rank, "model_error": self.model_error}
        for stage in sorted({each.stage for each in self.controls}):
            own = [each for each in self.controls if each.stage == stage]
            known = [each for each in own if each.entropy > float("-inf")]
            if self.compressing:
                found[f"rank_{stage}"] = max(own, key=lambda each: each.numel).rank
            if known:
                total = sum(each.numel for each in known)
                found[f"entropy_{stage}"] = sum(each.numel * each.entropy for each in known) / total
            total = sum(each.numel for each in own)
            found[f"zeros_{stage}"] = sum(each.numel * each.zeros for each in own) / total
        return found


_NUMBERS = tuple(field for field in fields(RankPlan) if field.name != "controls")
_COLUMNS = tuple(field.name for field in fields(Control))

_NATS = Numbers(-1000, 1000, unknown=True)
_RANKS = Numbers(0, 65_536, whole=True)
_SECONDS = Numbers(-1e12, 1e12, listed=False)
_COUNTS = Numbers(1, 2**53, whole=True)

NUMBERS: Mapping[str, Numbers] = {
    "compressing": Numbers(0, 1, whole=True, listed=False),
    "max_rank": Numbers(0, 65_536, whole=True, listed=False),
    **dict.fromkeys(("seconds_per_rank", "seconds", "model_error", "uncompressed_s", "backward_s"), _SECONDS),
    "stage": Numbers(0, 1023, whole=True),
    **dict.fromkeys(("rows", "columns", "count"), _COUNTS),
    **dict.fromkeys(("rank", "reference_rank"), _RANKS),
    **dict.fromkeys(("entropy", "reference_entropy"), _NATS),
    "zeros": Numbers(0, 1),
}
"""The numbers of a decision."""


def wrong_with(decision: Decision) -> str | None:
    """The reason why a decision whose numbers are within `NUMBERS` is not a plan; None if it is one."""
    lengths = {name: len(cast(Sequence[float], decision[name])) for name in _COLUMNS}
    if len({*lengths.values()}) > 1:
        return (
            f"its lists are of different lengths: {', '.join(f'{name} {n}' for name, n in lengths.items())}"
        )
    if decision["compressing"] and not lengths["rank"]:
        return "it compresses, but has no rank"
    return None


@dataclass(frozen=True)
class Window:
    """One window's result for the matrices of one shape in one stage: their mean entropy [nats], −∞ if all of
    them were zero, and the mean share of exact zeros."""

    stage: int
    rows: int
    columns: int
    count: int
    entropy: float
    zeros: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns


@dataclass(frozen=True)
class RankControl:
    """The settings of EDGC's rank control. `min_rank` 0 means a quarter of the largest rank; `warm_up_steps`
    is the earliest step at which compression may begin."""

    min_rank: int
    step_limit: int
    warm_up_steps: float
    alignment: Alignment
    reference: Reference

    def decide(
        self, plan: RankPlan, windows: Sequence[Window], next_step: int, stage_offset: float
    ) -> RankPlan:
        """The plan after a window, which applies from `next_step` on at the earliest.

        `windows` cover all shapes of all stages. If ranks are `aligned`, each stage's rank is `stage_offset`
        larger than the rank of the stage before it.
        """
        before = {(each.stage, each.shape): each for each in plan.controls}
        windows = _with_shared_entropies(windows) if self.alignment == "shared" else windows
        seen = [_seen(each, before.get((each.stage, each.shape))) for each in windows]
        if not plan.max_rank:  # compression saves no time, or that is not known yet
            return replace(plan, controls=tuple(seen))
        if not plan.compressing:
            return self._warmed_up(plan, seen, next_step)
        following = [self._following(plan, each) for each in seen]
        if self.alignment == "aligned":
            following = self._aligned(plan, following, stage_offset)
        return replace(plan, controls=tuple(following))

    def _warmed_up(self, plan: RankPlan, seen: Sequence[Control], next_step: int) -> RankPlan:
        """The plan at the end of a window of the warm-up. The warm-up ends with the first window, not before
        `warm_up_steps`, whose entropies ask for less than the largest rank."""
        asked = [_asked(replace(each, reference_rank=self._most(plan, each))) for each in seen]
        falling = [rank < self._most(plan, each) for rank, each in zip(asked, seen, strict=True)]
        deciding = [fell for fell, each in zip(falling, seen, strict=True) if self._decides(each)]
        if next_step < self.warm_up_steps or not any(deciding):
            return replace(plan, controls=tuple(seen))
        controls = []
        for rank, each in zip(asked, seen, strict=True):
            most = self._most(plan, each)
            begun = replace(each, rank=most, reference_rank=most)
            if self.reference == "activation":
                begun = replace(begun, reference_entropy=each.entropy)
            else:
                begun = replace(begun, rank=self._limited(plan, begun, rank))
            controls.append(begun)
        return replace(plan, compressing=1, controls=tuple(controls))

    def _decides(self, control: Control) -> bool:
        return control.stage == 0 or self.alignment != "aligned"

    def _following(self, plan: RankPlan, control: Control) -> Control:
        if not control.reference_rank:  # a shape that was not there when compression began
            most = self._most(plan, control)
            return replace(control, rank=most, reference_rank=most)
        return replace(control, rank=self._limited(plan, control, _asked(control)))

    def _aligned(self, plan: RankPlan, following: Sequence[Control], stage_offset: float) -> list[Control]:
        """Aligns the later stages of a model: their backward passes end earlier, so they get the first
        stage's ranks, increased by as much as they have time for (eq. 4). A shape that the first stage lacks
        keeps its own rank."""
        first = {each.shape: each.rank for each in following if each.stage == 0}
        previous = {(each.stage, each.shape): each for each in plan.controls}
        found = []
        for each in following:
            if each.stage and each.shape in first:
                asked = first[each.shape] + math.floor(each.stage * stage_offset)
                since = previous.get((each.stage, each.shape), each)
                each = replace(each, rank=self._limited(plan, since, asked))
            found.append(each)
        return found

    def _limited(self, plan: RankPlan, control: Control, asked: int) -> int:
        """Limits a rank as in Algorithm 1: at most the step limit away from the previous rank, and within the
        bounds."""
        most, least = self._most(plan, control), self._least(plan, control)
        near = max(control.rank - self.step_limit, min(control.rank + self.step_limit, asked))
        return max(least, min(most, near))

    def activity(self, plan: RankPlan) -> dict[str, float]:
        """The share of matrices whose ranks are at a bound, where a control that could move them does not."""
        total = sum(each.count for each in plan.controls)
        if not plan.compressing or not total:
            return {}
        bounds = [(self._least(plan, each), self._most(plan, each)) for each in plan.controls]
        held = [each.count for each, ends in zip(plan.controls, bounds, strict=True) if each.rank in ends]
        return {"at_bound": sum(held) / total}

    def _most(self, plan: RankPlan, control: Control) -> int:
        """The largest allowed rank of a matrix: it has an error only up to rank m − 1 of its m rows."""
        return max(1, min(plan.max_rank, min(control.shape) - 1))

    def _least(self, plan: RankPlan, control: Control) -> int:
        return min(self._most(plan, control), self.min_rank or max(1, plan.max_rank // 4))


def _seen(window: Window, before: Control | None) -> Control:
    """A control updated with its latest window; the first known entropy becomes the reference."""
    nats, zeros = window.entropy, window.zeros
    if before is None:
        return Control(window.stage, *window.shape, window.count, 0, nats, zeros, 0, nats)
    reference = before.reference_entropy if math.isfinite(before.reference_entropy) else nats
    return replace(before, entropy=nats, zeros=zeros, reference_entropy=reference)


def _asked(control: Control) -> int:
    """The rank that keeps the error (Theorem 3)."""
    if not math.isfinite(control.entropy):
        return control.rank or control.reference_rank
    return updated_rank(
        control.reference_rank, control.reference_entropy, control.entropy, control.rows, control.columns
    )


def _with_shared_entropies(windows: Sequence[Window]) -> list[Window]:
    """The windows with each shape's mean entropy over all stages that have it."""
    means: dict[tuple[int, int], float] = {}
    for shape in {each.shape for each in windows}:
        own = [each for each in windows if each.shape == shape and math.isfinite(each.entropy)]
        total = sum(each.count for each in own)
        means[shape] = sum(each.count * each.entropy for each in own) / total if own else -math.inf
    return [replace(each, entropy=means[each.shape]) for each in windows]

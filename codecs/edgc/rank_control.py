"""EDGC's dynamic alignment compressor: ranks that follow entropies, window by window (EDGC §IV-D).

A shape's rank is what keeps its error (`quantification`), changed by at most the step limit and kept within
bounds (Algorithm 1). Compression begins after a warm-up, with the largest rank. The stage that ends its
backward passes last sets the pace: earlier ones have time for larger ranks (Algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradwire.codecs.edgc.plan import Control, Plan
from gradwire.codecs.edgc.quantification import updated_rank
from gradwire.codecs.options.low_rank import Alignment, Reference


@dataclass(frozen=True)
class Window:
    """What a window has told of the matrices of one shape in one stage: their mean entropy [nats], −∞ if all
    of them were zero, and the mean share of exact zeros."""

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
    """The settings of EDGC's control of ranks; `min_rank` 0 is a quarter of the largest rank, and
    `warm_up_steps` is when compression may begin at the earliest."""

    min_rank: int
    step_limit: int
    warm_up_steps: float
    alignment: Alignment
    reference: Reference

    def decide(self, plan: Plan, windows: Sequence[Window], next_step: int, stage_offset: float) -> Plan:
        """The plan after a window, which is followed from `next_step` on at the earliest.

        `windows` have all shapes of all stages. A stage's rank is `stage_offset` more than that of the stage
        before it, if ranks are `aligned`.
        """
        before = {(each.stage, each.shape): each for each in plan.controls}
        told = _with_shared_entropies(windows) if self.alignment == "shared" else windows
        seen = [_seen(each, before.get((each.stage, each.shape))) for each in told]
        if not plan.max_rank:  # compression saves no time, or nobody knows yet
            return replace(plan, controls=tuple(seen))
        if not plan.compressing:
            return self._warmed_up(plan, seen, next_step)
        following = [self._following(plan, each) for each in seen]
        if self.alignment == "aligned":
            following = self._aligned(plan, following, stage_offset)
        return replace(plan, controls=tuple(following))

    def _warmed_up(self, plan: Plan, seen: Sequence[Control], next_step: int) -> Plan:
        """The plan at the end of a window of the warm-up, which ends with the first one after its floor whose
        entropies ask for less than the largest rank."""
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

    def _following(self, plan: Plan, control: Control) -> Control:
        if not control.reference_rank:  # a shape that was not there when compression began
            most = self._most(plan, control)
            return replace(control, rank=most, reference_rank=most)
        return replace(control, rank=self._limited(plan, control, _asked(control)))

    def _aligned(self, plan: Plan, following: Sequence[Control], stage_offset: float) -> list[Control]:
        """The later stages of a model, whose backward passes end earlier, have the first one's ranks and as
        many more as they have time for (eq. 4). A shape that the first stage does not have keeps its own."""
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

    def _limited(self, plan: Plan, control: Control, asked: int) -> int:
        """Algorithm 1: at most the step limit away from the rank before, within the bounds."""
        most, least = self._most(plan, control), self._least(plan, control)
        near = max(control.rank - self.step_limit, min(control.rank + self.step_limit, asked))
        return max(least, min(most, near))

    def _most(self, plan: Plan, control: Control) -> int:
        """A matrix of m rows has an error as long as its rank is at most m − 1."""
        return max(1, min(plan.max_rank, min(control.shape) - 1))

    def _least(self, plan: Plan, control: Control) -> int:
        return min(self._most(plan, control), self.min_rank or max(1, plan.max_rank // 4))


def _seen(window: Window, before: Control | None) -> Control:
    """A control with the entropy of its latest window; the first one that is known is the reference."""
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

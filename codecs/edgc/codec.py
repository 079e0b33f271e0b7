"""EDGC: PowerSGD whose ranks follow the entropy of the gradients (Yi et al., EDGC §IV)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Adapts, Agreed, Feedback
from gradwire.codecs.collectives import Collectives
from gradwire.codecs.edgc.communication import (
    FIRST_PROBE,
    MOST_PROBES,
    NO_TIMES,
    REPETITIONS,
    SAMPLED,
    Samples,
    StageTimes,
    largest_saving_rank,
    matrices,
    mean_of,
    rank_of_step,
    reported_shapes,
    reported_windows,
    step_times,
    time_model,
)
from gradwire.codecs.edgc.rank_control import NUMBERS, RankControl, RankPlan, wrong_with
from gradwire.codecs.edgc.sampler import stride_of
from gradwire.codecs.interface import Codec, Decision, Observation, Round
from gradwire.codecs.options.reduced import (
    Alignment,
    EDGCOptions,
    Reference,
)
from gradwire.codecs.powersgd import PowerSGD
from gradwire.codecs.step_memory import Memories
from gradwire.codecs.traits import About, Traits

WINDOWS, CLOCK = "windows", "clock"
"""Keys of the state: how many windows are over, and times."""

PROBING_ENDS = FIRST_PROBE + REPETITIONS * MOST_PROBES
"""The step before which all ranks have been probed."""


@dataclass
class EDGC(EDGCOptions, Codec, Adapts):
    """PowerSGD with error feedback, after a warm-up.

    At the end of each window of steps, each shape of matrices gets the compression rank that keeps its
    compression error constant as the entropy of its gradients changes. The samples of a window are reduced in
    the step after it, and the new ranks apply from the step after that. In a pipeline all stages decide
    together. If the settings ask for times, some warm-up steps also measure how long compressed gradients
    take, after the uncompressed ones. Raises ValueError for settings outside their range or that contradict
    one another.
    """

    decides = NUMBERS

    about = About(
        group="low rank",
        source="EDGC §IV",
        wire_bits="32 in the warm-up, then as powersgd with the ranks of the step",
        metadata="entropies and times, once a window",
        state="as powersgd; samples of the window",
        own_feedback=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_together()
        aligns = self.alignment == "aligned" and self.stages > 1 and self.stage_offset is None
        clock_driven = self.max_rank is None or aligns
        self.traits = Traits(stateful=True, needs_matrices=True, clock_driven=clock_driven, worst_vnmse=0.9)
        self.first_decision = RankPlan(max_rank=self.max_rank or 0).decision()
        self._engine = self._powersgd()
        self._control = RankControl(
            self.min_rank or 0,
            self.step_limit,
            self.warm_up_share * (self.steps or 0),
            cast(Alignment, self.alignment),
            cast(Reference, self.reference),
        )
        self._every = round(1 / self.alpha)
        self._decision, self._plan = self.first_decision, RankPlan.of(self.first_decision)
        self._samples, self._times = Samples(self.estimator, stride_of(self.beta)), StageTimes()
        self.memories = Memories({SAMPLED: self._samples.rows})
        self._step, self._windows = -1, 0
        self._observed = NO_TIMES

    def _check_together(self) -> None:
        if self.min_rank is not None and self.max_rank is not None and self.min_rank > self.max_rank:
            raise ValueError(
                f"codec.min_rank={self.min_rank} is more than codec.max_rank={self.max_rank}; choose at most "
                f"{self.max_rank}"
            )
        if self.window < round(1 / self.alpha):
            raise ValueError(
                f"codec.window={self.window} may have no step to sample, because codec.alpha={self.alpha} "
                f"samples one of {round(1 / self.alpha)}; choose a longer window, or a larger alpha"
            )
        if self.steps is not None and self.window > self.steps:
            raise ValueError(
                f"codec.window={self.window} is longer than the run of {self.steps} steps; choose at most "
                f"{self.steps}, a tenth of it for some changes of rank"
            )

    def _powersgd(self, rank: int = 4, *, lasting: bool = True) -> PowerSGD:
        """A PowerSGD with the settings of this codec; it keeps no state between rounds unless `lasting`."""
        return PowerSGD(
            rank=rank,
            min_compression_rate=self.min_compression_rate,
            orthogonalization=self.orthogonalization,
            feedback=lasting,
            warm_start=lasting,
        )

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        step, self._step = this_round.step, this_round.step
        if this_round.decision is not self._decision:
            self._decision, self._plan = this_round.decision, RankPlan.of(this_round.decision)
        ranks = dict.fromkeys(this_round.layout.names, 0)
        for matrix in matrices(this_round.layout, self.min_compression_rate):
            ranks[matrix.name] = self._plan.rank(this_round.stage, (matrix.rows, matrix.columns))
            self._samples.see(matrix)
            if step >= 0 and step % self._every == 0:
                self._samples.sample(matrix, x, seed=step)
        self._engine.set_ranks(ranks)
        mean = await self._engine.synchronize(x, this_round, comm)
        if self.traits.clock_driven and step < PROBING_ENDS:
            probed = rank_of_step(step, self._samples.shapes(), self.min_compression_rate)
            if probed:
                probe = self._powersgd(probed, lasting=False)
                await probe.synchronize(x, this_round, comm.in_phase("probe"))
        return mean

    def observe(self, observations: Sequence[Observation]) -> None:
        self._observed = step_times(observations)

    def refuses_decision(self, decision: Decision) -> str | None:
        return wrong_with(decision)

    def refuses_in(self, decision: Decision, this_round: Round) -> str | None:
        """Refuses a decision that lacks one of this bucket's matrices, which would then go uncompressed."""
        plan = self._plan if decision is self._decision else RankPlan.of(decision)
        known = {each.shape for each in plan.controls if each.stage == this_round.stage}
        own = {(one.rows, one.columns) for one in matrices(this_round.layout, self.min_compression_rate)}
        if not plan.compressing or own <= known:
            return None
        rows, columns = min(own - known)
        return f"there is no rank for matrices of {rows} x {columns} in stage {this_round.stage}"

    def _times_with_step(self) -> Tensor:
        return self._times.with_step(self._step, self._observed, uncompressed=not self._plan.compressing)

    @property
    def _is_due(self) -> bool:
        """True if the step about to end is the last one of a window, or the first later one that was not
        skipped."""
        return self._step >= 0 and (self._step + 1) // self.window > self._windows

    def feedback(self) -> Feedback:
        """At the end of a window: the rows, columns and number of the matrices of each shape, int64, and the
        sums of entropies, zeros and times, float64. Empty at the end of other steps."""
        nothing = torch.zeros(0, dtype=torch.float64, device="cpu")
        shapes = torch.tensor(self._samples.shapes() if self._is_due else [], dtype=torch.int64, device="cpu")
        totals = self._samples.totals() if self._is_due else nothing
        times = self._times_with_step() if self._is_due and self.traits.clock_driven else nothing
        return {
            "shapes": (shapes.view(-1), "or"),
            "entropies": (totals.view(-1), "sum"),
            "times": (times.view(-1), "sum"),
        }

    def decide(self, agreed: Agreed) -> Decision:
        shapes = [reported_shapes(stage["shapes"]) for stage in agreed.stages]
        if not any(shapes):
            return agreed.decision
        plan, windows = RankPlan.of(agreed.decision), []
        for number, stage in enumerate(agreed.stages):
            windows += reported_windows(number, shapes[number], stage["entropies"])
        if self.traits.clock_driven:
            plan = self._timed(plan, agreed)
        offset = self.stage_offset
        if offset is None:
            offset = plan.backward_s / plan.seconds_per_rank if plan.seconds_per_rank else 0.0
        return self._control.decide(plan, windows, agreed.step + 1, offset).decision()

    def _timed(self, plan: RankPlan, agreed: Agreed) -> RankPlan:
        """The plan with the measured times added: those of the first stage's communication, once all
        compression ranks have been probed, and those of all stages' backward passes."""
        times = [stage["times"].view(-1, 2) for stage in agreed.stages]
        backward = [mean_of(own[1]) for own in times if own.numel()]
        plan = replace(plan, backward_s=sum(backward) / len(backward) if backward else 0.0)
        shapes, rate = reported_shapes(agreed.stages[0]["shapes"]), self.min_compression_rate
        if plan.seconds_per_rank or not shapes or agreed.step <= PROBING_ENDS:
            return plan
        model, uncompressed = time_model(shapes, times[0], rate), mean_of(times[0][0])
        if model is None:
            return plan
        most = self.max_rank or largest_saving_rank(model, shapes, uncompressed, rate)
        return replace(
            plan,
            max_rank=most,
            seconds_per_rank=model.slope,
            seconds=model.constant,
            model_error=model.error,
            uncompressed_s=uncompressed,
        )

    def end_step(self, step: int) -> Mapping[str, float]:
        super().end_step(step)
        if step >= 0:
            self._times.values = self._times_with_step()
        if self._is_due:
            self._windows = (self._step + 1) // self.window
            self._samples.begin_window()
            self._times.begin_window()
        self._observed = NO_TIMES
        return {**self._engine.end_step(step), **self._plan.figures()}

    def activity(self) -> Mapping[str, float]:
        """The engine's, and the share of matrices whose ranks are at a bound."""
        return {**self._engine.activity(), **self._control.activity(self._plan)}

    def skip_step(self, step: int) -> Mapping[str, float]:
        """Discards everything that was recorded for the skipped step."""
        self.memories.skip_step()
        self._observed = NO_TIMES
        return {**self._engine.skip_step(step), **self._plan.figures()}

    def take_back(self, names: Collection[str]) -> None:
        """Undoes the engine's update of these parameters; their entropy samples still count."""
        self._engine.take_back(names)

    def state_dict(self) -> dict[str, Tensor]:
        own = {WINDOWS: torch.tensor(self._windows, device="cpu"), CLOCK: self._times.values}
        return self._engine.state_dict() | super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces the whole state by one that `state_dict` returned. Raises ValueError for other keys."""
        if not {WINDOWS, CLOCK} <= state.keys():
            raise ValueError(f"the state of codec={self.name} has {WINDOWS} and {CLOCK}, got {sorted(state)}")
        rest = self.memories.load(state)
        self._engine.load_state_dict({key: x for key, x in rest.items() if key not in (WINDOWS, CLOCK)})
        self._windows, self._times.values = int(state[WINDOWS]), state[CLOCK].clone()
        self._step, self._observed = -1, NO_TIMES

"""The wrapper of a codec that adapts: it reduces the codec's feedback over all ranks and applies the
resulting decisions to later steps.

It is the outermost wrapper, so it sees every bucket of a step. The step's first bucket carries the feedback
of the step before, in one message with the codec's own first metadata. If that bucket reduces no metadata,
e.g. because its parameters are excluded, the feedback is sent in a message of its own.

In a pipeline, each stage's feedback reaches the other stages before the step ends: `stage_report` returns the
message to them, `receive_stage_reports` takes theirs.

With a file of decisions the codec follows the recorded decisions instead of its own. Its messages are the
same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Adapts, Agreed
from gradwire.codecs.collectives import Collectives, Op
from gradwire.codecs.costs import Costs
from gradwire.codecs.decision_file import STEP, DecisionFile
from gradwire.codecs.interface import Codec, Decision, Layout, Round
from gradwire.codecs.wording import shortened
from gradwire.codecs.wrappers.wrapper import Wrapper, innermost


def packed(parts: Sequence[Tensor]) -> Tensor:
    """The bytes of all tensors, one after another: (length,) uint8 on the CPU, empty for no parts."""
    lengths = torch.tensor([part.numel() for part in parts], dtype=torch.int64, device="cpu")
    return torch.cat([_bytes(lengths), *(_bytes(part.cpu()) for part in parts)])


def unpacked(message: Tensor, dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """The inverse of `packed`: the tensors, on the CPU."""
    rest, found = message.cpu(), []
    lengths = rest[: 8 * len(dtypes)].clone().view(torch.int64).tolist()
    rest = rest[8 * len(dtypes) :]
    for length, dtype in zip(lengths, dtypes, strict=True):
        size = length * dtype.itemsize
        found.append(rest[:size].clone().view(dtype))
        rest = rest[size:]
    assert not rest.numel(), "a message is longer than its parts"
    return found


def _bytes(part: Tensor) -> Tensor:
    return part.contiguous().view(torch.uint8)


_Collective = Callable[[Tensor, Round, Collectives], Awaitable[Tensor]]


class Decisions(Wrapper):
    """Wraps `inner`, whose innermost codec `Adapts`. Use `with_decisions`, which checks for that."""

    def __init__(self, inner: Codec, followed: DecisionFile | None = None) -> None:
        """Raises ValueError if `followed` holds decisions that the codec does not make."""
        super().__init__(inner)
        adapting = innermost(inner)
        assert isinstance(adapting, Adapts)
        self.traits = replace(inner.traits, stateful=True)
        self._adapting = adapting
        self._operations: dict[str, Op] = {name: op for name, (_, op) in adapting.feedback().items()}
        self._own = {name: numbers for name, (numbers, _) in adapting.feedback().items()}
        """This rank's numbers of the last step that counted."""
        self._decision = adapting.first_decision
        first = self._own | {name: _as_tensor(value) for name, value in self._decision.items()}
        self._shapes = {name: value.shape for name, value in first.items()}
        """Those of the numbers in checkpoints; one that is empty here may have any length there."""
        shared = sorted(
            (self._own.keys() & self._decision.keys()) | (first.keys() & inner.state_dict().keys())
        )
        if shared:
            raise ValueError(
                f"codec={self.name}: {shared[0]} names two things; feedback, decisions and the codec's own "
                "state are kept together in checkpoints, and need different names"
            )
        if STEP in self._decision:
            raise ValueError(f"codec={self.name}: a decision called {STEP} has the name of a line's number")
        self.followed = followed
        """The decisions that it follows in place of its own, if any."""
        if followed is not None:
            followed.check_all(f"{type(adapting).__qualname__} {adapting!r}", self._refusal)
        self._size = 0
        self._places: dict[str, Tensor] = {}
        """The memory from which captured rounds read this rank's numbers."""
        self._reduced: list[Tensor] | None = None
        self._stages: list[Mapping[str, Tensor]] = []
        """The combined numbers of all stages, once they have been exchanged."""

    @property
    def decision(self) -> Decision:
        """The decision for the current step, or between steps for the next one."""
        return self._decision

    def options(self) -> dict[str, object]:
        return {} if self.followed is None else {"decisions": self.followed.digest}

    def costs(self, workers: int) -> Costs | None:
        return self.inner.costs(workers)  # a few numbers more cost nothing

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await self._carried(self.inner.synchronize, x, this_round, comm)

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await self._carried(self.inner.scatter, x, this_round, comm)

    async def _carried(self, run: _Collective, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        own_round = replace(this_round, decision=self._followed_in(this_round.step))
        if self.followed is not None and this_round.step > 0:
            reason = self._adapting.refuses_in(own_round.decision, own_round)
            if reason is not None:
                raise ValueError(self.followed.refusal(this_round.step, reason))
        capture = this_round.capture
        if capture is not None:
            own_round = replace(own_round, capture=replace(capture, decision=lambda: self._decision))
        if this_round.bucket:
            return await run(x, own_round, comm)
        self._size = this_round.size
        own = self._places if capture is not None else self._own
        carrier = _Carrier(comm, [(own[name].to(x.device), op) for name, op in self._operations.items()])
        mean = await run(x, own_round, cast(Collectives, carrier))
        self._reduced = await carrier.delivered()
        if capture is not None:
            capture.kept.append(self._places)
            capture.before_launch.append(partial(self._begin_launch, self._reduced))
        return mean

    def _begin_launch(self, reduced: list[Tensor]) -> None:
        """Writes this rank's numbers to where the captured round of the step's first bucket reads them;
        `reduced` is where it leaves the ranks' combined ones."""
        for name, place in self._places.items():
            place.copy_(self._own[name])
        self._reduced = reduced

    def refuses_capture(self, layout: Layout) -> str | None:
        """Refuses a file of decisions that a codec has to look at in every step."""
        own = self._adapting
        if self.followed is not None and (own.hindsight or type(own).refuses_in is not Adapts.refuses_in):
            return f"codec={self.name} checks in every step whether it can follow codec.decisions"
        return self.inner.refuses_capture(layout)

    def captured_form(self, this_round: Round) -> Hashable:
        followed = replace(this_round, decision=self._followed_in(this_round.step))
        return self.inner.captured_form(followed)

    def prepare_capture(self, this_round: Round) -> None:
        super().prepare_capture(this_round)
        if not this_round.bucket:
            for name, numbers in self._own.items():
                if name not in self._places:
                    self._places[name] = torch.zeros_like(numbers, device=this_round.layout.device)

    def end_step(self, step: int) -> Mapping[str, float]:
        if self._reduced is not None:
            following = self._decide(step)
            self._own = {name: numbers for name, (numbers, _) in self._adapting.feedback().items()}
            self._decision = self._followed_after(step, following)
        return super().end_step(step)

    def skip_step(self, step: int) -> Mapping[str, float]:
        if self._reduced is not None:
            decided = self._decide(step)
            kept = {**self._decision, **{name: decided[name] for name in self._adapting.hindsight}}
            self._decision = self._followed_after(step, kept)
        return super().skip_step(step)

    def _refusal(self, decision: Decision) -> str | None:
        """The reason why a decision of the file does not fit this codec; None if it fits."""
        own = self._adapting.first_decision
        if decision.keys() != own.keys():
            there, here = (", ".join(sorted(names)) or "nothing" for names in (decision, own))
            return f"decides {shortened(there)}, but codec={self.name} decides {here}"
        for name, value in decision.items():
            rule = self._adapting.decides.get(name)
            usual = "a number" if isinstance(own[name], int | float) else "a list"
            if rule is None and isinstance(own[name], int | float) is not isinstance(value, int | float):
                return f"{name} is not {usual}"
            if rule is not None and (reason := rule.refusal(value)) is not None:
                return f"{name} {reason}"
        return self._adapting.refuses_decision(decision)

    def _followed_in(self, step: int) -> Decision:
        """The followed decision for step `step`, with what the followed run observed in that step, if
        recorded."""
        if self.followed is None or step < 0:
            return self._decision
        recorded = {
            f"followed/{name}": self.followed.decision(step + later)[name]
            for name, later in self._adapting.hindsight.items()
            if step + later <= self.followed.num_steps
        }
        return {**self._decision, **recorded} if recorded else self._decision

    def _followed_after(self, step: int, decision: Decision) -> Decision:
        """The decision for the step after `step`: the file's if one is followed, otherwise `decision`."""
        return decision if self.followed is None or step < 0 else self.followed.decision(step + 1)

    def _decide(self, step: int) -> Decision:
        """The decision that the codec derives from the feedback reduced in the step."""
        assert self._reduced is not None
        agreed = self._agreed(self._reduced)
        stages, self._stages, self._reduced = self._stages or [agreed], [], None
        return self._adapting.decide(Agreed(step, self._size, self._decision, agreed, stages))

    def _agreed(self, reduced: Sequence[Tensor]) -> Mapping[str, Tensor]:
        return dict(zip(self._operations, (numbers.cpu() for numbers in reduced), strict=True))

    def report(self) -> Tensor:
        """This stage's feedback, combined over its ranks: (length,) uint8, empty if there is none."""
        reduced = self._reduced or []
        return packed(reduced) if any(numbers.numel() for numbers in reduced) else packed([])

    def receive_reports(self, reports: Sequence[Tensor]) -> None:
        """Takes the reports of all stages, including this one's."""
        assert self._reduced is not None
        dtypes = [numbers.dtype for numbers in self._reduced]
        nothing = [numbers.new_empty(0) for numbers in self._reduced]
        self._stages = [
            self._agreed(unpacked(report, dtypes) if report.numel() else nothing) for report in reports
        ]

    def state_dict(self) -> dict[str, Tensor]:
        decision = {name: _as_tensor(value) for name, value in self._decision.items()}
        return {name: own.cpu() for name, own in self._own.items()} | decision | super().state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        missing = sorted(self._shapes.keys() - state.keys())
        if missing:
            names = " and ".join(sorted(self._shapes))
            raise ValueError(f"the state of codec={self.name} has {names}, got {sorted(state)}")
        for name, shape in self._shapes.items():
            if shape.numel() and state[name].shape != shape:
                raise ValueError(
                    f"the state of codec={self.name} has {name} of shape {list(shape)}, got "
                    f"{list(state[name].shape)}"
                )
        super().load_state_dict({key: value for key, value in state.items() if key not in self._shapes})
        self._own = {name: state[name].to("cpu", own.dtype, copy=True) for name, own in self._own.items()}
        self._decision = {name: state[name].tolist() for name in self._decision}
        self._reduced, self._stages = None, []


def _as_tensor(value: float | Sequence[float]) -> Tensor:
    """A decision's numbers, int64 if all of them are integers, else float64."""
    numbers = [value] if isinstance(value, int | float) else value
    whole = all(isinstance(number, int) for number in numbers)
    return torch.tensor(value, dtype=torch.int64 if whole and numbers else torch.float64, device="cpu")


def with_decisions(codec: Codec, followed: DecisionFile | None = None) -> Codec:
    """`codec`, wrapped so that it follows its own decisions if it makes any, or those of `followed`.

    Raises ValueError if `followed` is given for a codec that makes no decisions.
    """
    if isinstance(innermost(codec), Adapts) and not isinstance(codec, Decisions):
        return Decisions(codec, followed)
    if followed is not None:
        raise ValueError(f"{followed.option}: codec={codec.name} makes no decisions; leave it out")
    return codec


def decision_of(codec: Codec) -> Decision:
    """The decision for the coming step; empty for a codec that makes none."""
    return codec.decision if isinstance(codec, Decisions) else {}


def stage_report(codec: Codec) -> Tensor:
    """A stage's report to the other stages as a step ends: (length,) uint8, empty if there is nothing to
    report."""
    return codec.report() if isinstance(codec, Decisions) else packed([])


def receive_stage_reports(codec: Codec, reports: Sequence[Tensor]) -> None:
    """Give a codec the reports of all stages, in stage order; does nothing if all of them are empty."""
    if isinstance(codec, Decisions):
        codec.receive_reports(reports)


class _Carrier:
    """`comm`, with `parts` added to the message of its first reduction."""

    def __init__(self, comm: Collectives, parts: Sequence[tuple[Tensor, Op]]) -> None:
        self._comm, self._parts = comm, parts
        self._reduced: list[Tensor] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def reduce(self, parts: Sequence[tuple[Tensor, Op]], *, in_place: bool = False) -> list[Tensor]:
        if self._reduced is not None:
            return await self._comm.reduce(parts, in_place=in_place)
        found = await self._comm.reduce([*parts, *self._parts])
        self._reduced = found[len(parts) :]
        return found[: len(parts)]

    async def delivered(self) -> list[Tensor]:
        """The parts, combined over the ranks; sent in a message of their own if there was no reduction to add
        them to."""
        if self._reduced is None:
            own = [numbers for numbers, _ in self._parts]
            filled = any(numbers.numel() for numbers in own)
            self._reduced = await self._comm.reduce(self._parts) if filled else own
        return self._reduced

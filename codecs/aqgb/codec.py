"""AQGB: adaptive quantized gradient broadcast (Luo et al., FGCS 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Adapts, Agreed, Feedback
from gradwire.codecs.aqgb import plan
from gradwire.codecs.aqgb.decision import (
    DECIDES,
    DECIDES_SPLIT,
    SENT,
    SPLIT,
    number,
    refuses_decision,
    refuses_in,
    wholes,
)
from gradwire.codecs.aqgb.encoding import FULL, Encoding
from gradwire.codecs.aqgb.payload import (
    NOTHING,
    Packing,
    Payload,
    packing,
    partitions_per_packet,
    rounding_of,
)
from gradwire.codecs.aqgb.pieces import (
    BlockPiece,
    Open,
    OpenPiece,
    coarsest,
    mean_of_pieces,
    more_of,
    pieces_of,
)
from gradwire.codecs.aqgb.plan import StepProfile
from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.collectives import Collectives
from gradwire.codecs.interface import Codec, Decision, Elapsed, Layout, Observation, Round
from gradwire.codecs.options.quantized import AQGBOptions
from gradwire.codecs.traits import About, Traits

HISTORY = "history"
"""A key of the state: the last step and what was sent in it."""


@dataclass
class Figures:
    """Counts of a step's first stage: coordinates, their bits, and packets."""

    coordinates: int = 0
    bits: int = 0
    at_bound: int = 0
    packing: Packing = NOTHING

    def logged(self) -> dict[str, float]:
        ratio = self.bits / (FULL * self.coordinates) if self.coordinates else 1.0
        packets = {"packets": float(self.packing.packets), "header_overhead": self.packing.overhead}
        return {"ratio": ratio, **packets}

    def activity(self) -> dict[str, float]:
        """Bits over full ones, and the share of coordinates whose bits no plan could lower or raise."""
        if not self.coordinates:
            return {}
        return {"ratio": self.logged()["ratio"], "at_bound": self.at_bound / self.coordinates}


@dataclass
class AQGB(AQGBOptions, Codec, Adapts):
    """The first bits of every gradient, broadcast during the backward pass, and more of them until the next
    forward pass needs them.

    All ranks decide on the number of bits together, from the times that they have observed (see `plan`).
    Gradients travel in full until every rank has observed a step. Raises ValueError for settings outside
    their range.
    """

    about = About(
        group="adaptive broadcast",
        source="AQGB §4",
        unbiased_if="codec.base=plain codec.rounding=stochastic",
        wire_bits="4 to 32 as the network allows, and 0.5 for scales below 32 (`codec.base=plain`: 7)",
        metadata="times of blocks and a rate, once a step",
        state="averages of them; what was sent in the last step",
    )
    traits = Traits(stateful=True, clock_driven=True, worst_vnmse=0.15)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._encoding = Encoding(self.base, self.scale)
        self.traits = replace(
            AQGB.traits,
            clock_driven=self.bits is None,
            unbiased=self.rounding == "stochastic" and self.scale != "none",
        )
        self._per_packet(FULL)
        self.first_decision: Decision = {"first": [], "more": [], "deadlines": [], SENT: []}
        if self._requantizes:
            self.first_decision = {**self.first_decision, SPLIT: []}
            self.decides = DECIDES_SPLIT
        self._profile = StepProfile(self.gain, self.rate_gain)
        self._sizes: dict[int, int] = {}  # coordinates by bucket
        self._open: dict[tuple[int, int], Open] = {}  # by step and bucket
        self._sent: dict[int, dict[int, list[int]]] = {}  # by step and bucket
        self._ranks, self._planned = 1, False
        self._figures = self._ended = Figures()

    def _per_packet(self, bits: int) -> int:
        return partitions_per_packet(
            self.partition, self.packet, partial(self._encoding.payload_bytes, bits=bits)
        )

    @property
    def refines(self) -> bool:
        return self.bits is None

    @property
    def _requantizes(self) -> bool:
        return self.leftovers == "requantized"

    @property
    def boundary(self) -> int:
        """Bytes of a partition of uncompressed coordinates; with fewer bits per coordinate they hold
        several."""
        return self._encoding.payload_bytes(self.partition, FULL)

    hindsight = {SENT: 2}
    decides = DECIDES

    def refuses_decision(self, decision: Decision) -> str | None:
        return refuses_decision(decision, self._encoding, self.partition)

    def refuses_in(self, decision: Decision, this_round: Round) -> str | None:
        """Checks that the decision covers this bucket. All blocks are known after the first step, so from
        then on decisions must cover every one of them."""
        return refuses_in(decision, self._sizes, this_round.size)

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        if topology != "broadcast":
            return (
                "every worker's gradient is sent to all others unsummed, which no topology that sums can do; "
                "add topology=broadcast"
            )
        return super().supports(topology, size, layout)

    def supports_stages(self, stages: int, *, refines: bool = False) -> str | None:
        reason = super().supports_stages(stages, refines=refines)
        return None if reason is None else f"{reason}, or codec.bits=8, which refines nothing"

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        bucket, decision = this_round.bucket, this_round.decision
        self._sizes[bucket], self._ranks = x.numel(), this_round.size
        self._planned = bool(decision.get("first"))
        pieces = self._pieces(decision, bucket, x.numel())
        received, begin = list[list[Payload]](), 0
        for piece in pieces:
            received.append(await self._broadcast(x, begin, piece, this_round, comm))
            begin += piece.numel
        more = int(number(decision, "more", bucket, 0)) if self.bits is None else 0
        if more:
            self._open[this_round.step, bucket] = self._opened(x, pieces, received, more, this_round)
        mean = mean_of_pieces(received, x.device)
        comm.worked("collect", 1.0)
        return mean.to(x.dtype)

    def _pieces(self, decision: Decision, bucket: int, numel: int) -> list[BlockPiece]:
        """The pieces in which a block is sent, and their bits."""
        first = wholes(decision, "first")
        if self.bits is not None or bucket >= len(first):
            return [BlockPiece(numel, FULL if self.bits is None else self.bits)]
        return pieces_of(first, wholes(decision, SPLIT), bucket, numel)

    async def _broadcast(
        self, block: Tensor, first: int, piece: BlockPiece, this_round: Round, comm: Collectives
    ) -> list[Payload]:
        """Sends a piece of a block, from coordinate `first` on, and returns all ranks' payloads."""
        numel, bits = piece
        random = [self._random(this_round, rank) for rank in range(this_round.size)]
        x = block[first : first + numel]
        own = Payload.of(x, bits, self._encoding, random[this_round.rank], first)
        self._count(numel, bits)
        comm.worked("encode", numel / block.numel())
        messages = await comm.all_gather(own.message)
        return [
            replace(own, message=message, rounding=rounding_of(bits, of_rank, first))
            for message, of_rank in zip(messages, random, strict=True)
        ]

    def _opened(
        self,
        x: Tensor,
        pieces: Sequence[BlockPiece],
        received: Sequence[list[Payload]],
        more: int,
        this_round: Round,
    ) -> Open:
        """The block `x`, whose pieces have been received, until it is refined by `more` bits."""
        opened, begin, least = list[OpenPiece](), 0, coarsest(pieces)
        for (numel, bits), parts in zip(pieces, received, strict=True):
            follow = more_of(bits, least, more, self._encoding)
            own = x[begin : begin + numel]
            opened.append(OpenPiece.of(own, this_round.rank, parts, follow))
            begin += numel
        decision, bucket = this_round.decision, this_round.bucket
        deadline = number(decision, "deadlines", bucket, float("inf"))
        followed = self._sent_in_followed(decision, bucket, this_round.size)
        return Open(opened, more, deadline, followed, [0] * this_round.size)

    def _random(self, this_round: Round, rank: int) -> CoordinateBits | None:
        """A rank's private bits, which every rank can draw; None without random rounding."""
        if self.rounding != "stochastic":
            return None
        return CoordinateBits(this_round.key, rank, this_round.key_place)

    def _count(self, numel: int, bits: int) -> None:
        self._figures.coordinates += numel
        self._figures.bits += numel * bits
        self._figures.at_bound += numel * (bits in (plan.bits_of(self.floor), FULL))
        size = partial(self._encoding.payload_bytes, bits=bits)
        self._figures.packing += packing(numel, self.partition, self.packet, size)

    def _sent_in_followed(self, decision: Decision, bucket: int, ranks: int) -> list[int] | None:
        """The bits that each rank sent in the followed run, if its decisions record them."""
        sent = decision.get(f"followed/{SENT}", [])
        assert isinstance(sent, Sequence)
        own = [int(bits) for bits in sent[bucket * ranks : (bucket + 1) * ranks]]
        return own if len(own) == ranks else None

    async def refine(
        self, mean: Tensor, this_round: Round, comm: Collectives, elapsed: Elapsed | None = None
    ) -> Tensor:
        """Sends further bits, some at a time.

        Before these every rank announces how many it sends: 0 once it has sent all of them or its deadline
        has passed. So all ranks end with the same bits, whichever rank was late.
        """
        block = self._open.pop((this_round.step, this_round.bucket), None)
        if block is None:
            return mean
        target = block.more
        if block.followed is not None:
            target, elapsed = block.followed[comm.rank], None
        going, device = [True] * comm.size, mean.device
        while any(going):
            late = elapsed is not None and elapsed() > block.deadline
            step = 0 if late else self._next_step(block, comm.rank, target - block.sent[comm.rank])
            header = torch.tensor([step if going[comm.rank] else 0], dtype=torch.uint8, device=device)
            steps = [int(each) for each in torch.cat(await comm.all_gather(header)).tolist()]
            going = [bits > 0 for bits in steps]
            if any(going):
                await self._send(block, steps, comm)
                going = [more and sent < block.more for more, sent in zip(going, block.sent, strict=True)]
        self._sent.setdefault(this_round.step, {})[this_round.bucket] = block.sent
        refined = block.mean()
        comm.worked("finish", 1.0)
        return refined.to(mean.dtype)

    def _next_step(self, block: Open, rank: int, left: int) -> int:
        """The bits that a rank sends next of a block with `left` bits to follow: 0 if these refine
        nothing."""
        least = block.least_step(rank, self._encoding)
        return min(max(self.step_bits, least), left) if left >= least else 0

    async def _send(self, block: Open, steps: Sequence[int], comm: Collectives) -> None:
        """Exchanges the next bits, of which rank r sends up to `steps[r]` of every coordinate, and adds the
        received bits to the block."""
        encoding = self._encoding
        plane = block.plane(comm.rank, steps[comm.rank], encoding)
        comm.worked("encode", 1.0)
        sizes = [block.plane_bytes(rank, step, encoding) for rank, step in enumerate(steps)]
        planes = await comm.all_gather(plane, sizes)
        for rank, (step, came) in enumerate(zip(steps, planes, strict=True)):
            block.refine(rank, step, came, encoding)
        comm.worked("collect", 1.0)

    def observe(self, observations: Sequence[Observation]) -> None:
        self._profile.see(observations, len(self._sizes), self._ranks, planned=self._planned)

    def feedback(self) -> Feedback:
        """Per bucket, the seconds at which blocks are ready and can be used, and the rate, all float64; empty
        columns until all of them are known."""
        seen = self._profile
        known = seen.is_complete
        forward = seen.forward or [0.0] * len(seen.backward)  # not known yet: nothing is refined
        return {
            "backward": (_column(seen.backward if known else []), "sum"),
            "forward": (_column(forward if known else []), "max_bits"),
            "rate": (_column([seen.rate] if known else []), "max_bits"),
        }

    def decide(self, agreed: Agreed) -> Decision:
        sent = self._sent_in(agreed.step - 1)
        backward = agreed.feedback["backward"]
        unknown = len(backward) != len(self._sizes) or not len(backward)
        if unknown or self.bits is not None:
            return {**agreed.decision, SENT: sent}
        times = plan.AgreedTimes(
            [self._sizes[bucket] for bucket in sorted(self._sizes)],
            [own / agreed.size for own in backward.tolist()],
            agreed.feedback["forward"].tolist(),
            float(agreed.feedback["rate"]),
        )
        partition = self.partition if self._requantizes else None
        made = plan.make_plan(times, self.floor, self.margin_s, self._encoding, partition)
        deadlines = [seconds - self.margin_s for seconds in times.forward]
        split = {SPLIT: list(made.split)} if self._requantizes else {}
        planned = {"first": list(made.first), "more": list(made.more), "deadlines": deadlines}
        return {**planned, **split, SENT: sent}

    def _sent_in(self, step: int) -> list[int]:
        """The further bits that each rank sent of each block in a step, block by block."""
        own = self._sent.get(step, {})
        nothing = [0] * self._ranks
        return [bits for bucket in sorted(self._sizes) for bits in own.get(bucket, nothing)]

    def end_step(self, step: int) -> Mapping[str, float]:
        logged = self._figures.logged() | {"rate_mbit": self._profile.rate * 8e-6}
        self._ended, self._figures = self._figures, Figures()
        # Another thread may be refining this step's blocks, so existing entries must stay.
        for sent in [sent for sent in list(self._sent) if sent < step]:
            del self._sent[sent]
        for key in [key for key in list(self._open) if key[0] < step]:
            del self._open[key]
        return logged

    def activity(self) -> Mapping[str, float]:
        return self._ended.activity()

    def skip_step(self, step: int) -> Mapping[str, float]:
        """Drops the blocks of a skipped step: they are not refined."""
        for key in [key for key in list(self._open) if key[0] == step]:
            del self._open[key]
        return self.end_step(step)

    def state_dict(self) -> dict[str, Tensor]:
        """The state to save, to be called between steps, when all work of the last step has ended."""
        last = max(self._sent, default=-1)
        history = [last, self._ranks, *self._sent_in(last)] if last >= 0 else []
        sizes = [self._sizes[bucket] for bucket in sorted(self._sizes)]
        return self._profile.state_dict() | {
            HISTORY: torch.tensor(history, dtype=torch.int64, device="cpu"),
            "sizes": torch.tensor(sizes, dtype=torch.int64, device="cpu"),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces the whole state by one that `state_dict` returned. Raises ValueError for other keys."""
        expected = self.state_dict().keys()
        if state.keys() != expected:
            raise ValueError(f"the state of codec={self.name} has {sorted(expected)}, got {sorted(state)}")
        self._profile.load_state_dict(dict(state))
        self._sizes = dict(enumerate(state["sizes"].tolist()))
        self._open, self._sent, self._figures = {}, {}, Figures()
        if state[HISTORY].numel():
            last, self._ranks, *sent = state[HISTORY].tolist()
            ranks = self._ranks
            self._sent[last] = {bucket: sent[bucket * ranks : (bucket + 1) * ranks] for bucket in self._sizes}


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64, device="cpu")

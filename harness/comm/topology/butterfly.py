"""Butterfly all-reduce: recursive halving, then recursive doubling (DynamiQ Appendix B).

In halving step k a rank exchanges with the rank whose k-th highest bit differs: it sends the half of its
chunks that the partner will own and accumulates the other half. If n is not a power of two, the schedule is
folded: the n − 2^k extra ranks give their gradient to a core rank first and get the result last. Every rank
encodes each coordinate at most once, and each coordinate is encoded n times in all.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.harness.comm.topology.schedule import Action, Receive, Schedule, Send, Source, Step


def butterfly(size: int) -> Schedule:
    """The butterfly over `size` ranks; as many chunks as the largest power of two ≤ `size`."""
    core = 1 << (size.bit_length() - 1)
    extras = size - core
    ranks = [_core_steps(rank, core, extras) for rank in range(core)]
    ranks += [_extra_steps(rank - core, core, size) for rank in range(core, size)]
    return Schedule("butterfly", size, core, tuple(tuple(steps) for steps in ranks))


def near_first(size: int) -> Schedule:
    """The butterfly over `size` ranks with its places dealt out so that neighbours exchange first, and most.

    In the butterfly over places, halving step k exchanges between places whose k-th highest bit differs. Here
    the core places are visited in the order of their bits read backwards, a place with a folded extra one
    followed by that, and the ranks take them in ascending order. Halving step k then exchanges between blocks
    of consecutive ranks, about 2^k in each, so that what leaves a node of consecutive ranks leaves it last,
    when messages are shortest; nodes that divide the ranks evenly into a power of two are never halved.
    """
    whole = butterfly(size)
    core = whole.num_chunks
    bits, rank_at = core.bit_length() - 1, dict[int, int]()
    for number in range(core):
        place = int(f"{number:0{bits}b}"[::-1], 2)
        for at in (place, core + place):
            if at < size:
                rank_at[at] = len(rank_at)
    steps = {
        rank: tuple(
            Step(
                step.phase,
                tuple(replace(send, peer=rank_at[send.peer]) for send in step.sends),
                tuple(replace(receive, peer=rank_at[receive.peer]) for receive in step.receives),
            )
            for step in whole.ranks[place]
        )
        for place, rank in rank_at.items()
    }
    return replace(whole, name="near_first", ranks=tuple(steps[rank] for rank in range(size)))


def _workers(first: int, count: int, extras: int, stride: int) -> int:
    """The contributions held by the core ranks first, first + stride, …, including those of their folded
    extra ranks."""
    holders = [first + i * stride for i in range(count)]
    return sum(2 if holder < extras else 1 for holder in holders)


def _extra_steps(partner: int, core: int, size: int) -> list[Step]:
    everything = range(core)
    return [
        Step("reduce_scatter", sends=(Send(partner, everything, 1, "leaf"),)),
        Step("all_gather", receives=(Receive(partner, everything, size, (("gather", everything),)),)),
    ]


def _halves(chunks: range, rank: int) -> tuple[range, range]:
    """The kept and the given halves of the chunks that a rank still works on; a rank ends with chunk
    `rank`.
    """
    middle = (chunks.start + chunks.stop) // 2
    low, high = range(chunks.start, middle), range(middle, chunks.stop)
    return (high, low) if rank >= middle else (low, high)


def _actions(kept: range, rank: int) -> tuple[tuple[Action, range], ...]:
    """The actions on newly received sums of `kept`: the half that is given away next is encoded at once."""
    if len(kept) == 1:
        return (("sink", kept),)
    next_kept, given = _halves(kept, rank)
    actions: list[tuple[Action, range]] = [("partial", next_kept), ("inner", given)]
    return tuple(sorted(actions, key=lambda action: action[1].start))


def _core_steps(rank: int, core: int, extras: int) -> list[Step]:
    size, folded = core + extras, rank < extras
    chunks, steps = range(core), []
    source: Source = "leaf"
    if folded:
        steps.append(
            Step("reduce_scatter", receives=(Receive(core + rank, chunks, 1, _actions(chunks, rank)),))
        )
        source = "inner"
    exchanges = []
    while len(chunks) > 1:
        kept, given = _halves(chunks, rank)
        half = len(kept)
        peer = rank + half if rank < given.start else rank - half
        merged = core // len(chunks)  # core ranks whose sums this rank has merged so far
        sent = Send(peer, given, _workers(rank % len(chunks), merged, extras, len(chunks)), source)
        got = _workers(peer % len(chunks), merged, extras, len(chunks))
        steps.append(Step("reduce_scatter", (sent,), (Receive(peer, kept, got, _actions(kept, rank)),)))
        exchanges.append((peer, kept, given))
        chunks, source = kept, "inner"
    for peer, kept, given in reversed(exchanges):
        steps.append(
            Step(
                "all_gather",
                (Send(peer, kept, size, "sealed"),),
                (Receive(peer, given, size, (("gather", given),)),),
            )
        )
    if folded:
        steps.append(Step("all_gather", sends=(Send(core + rank, range(core), size, "sealed"),)))
    return steps

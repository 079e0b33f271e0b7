"""The end of a step for the codecs of the ranks in this process."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gradwire.codecs.interface import Codec, Decision
from gradwire.codecs.wrappers.decisions import decision_of
from gradwire.harness.comm.world.interface import World


def end_codecs(
    world: World,
    codecs: Mapping[int, Codec],
    step: int,
    *,
    skipped: bool = False,
    unused: Collection[str] = (),
) -> tuple[Mapping[str, float], Decision]:
    """Tells each rank's codec what the clock says of the step, if it follows the clock, and that the step has
    ended; it was `skipped` if the means are not used. Those of the `unused` parameters are not applied.

    Returns what the codecs log and what they follow in the next step, both the same on all ranks.
    """
    if any(codec.traits.clock_driven for codec in codecs.values()):
        for rank, observations in world.observations().items():
            codecs[rank].observe(observations)
    for codec in codecs.values():
        codec.take_back(unused)
    logged = [codec.skip_step(step) if skipped else codec.end_step(step) for codec in codecs.values()]
    return logged[0], decision_of(next(iter(codecs.values())))

"""The simulated clock of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.harness.network.configured import make_links
from gradwire.harness.network.settings import NetworkConfig, ShapedConfig, SimulatedConfig
from gradwire.harness.timing.simulate.background import BackgroundLoad
from gradwire.harness.timing.simulate.blocks import Variation, blocks_of
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.codec_times import CodecTimes, MeasuredTimes, NoTimes, read_bench_times
from gradwire.harness.timing.simulate.compute import ComputeTimes

MIB = 2**20


def make_clock(
    network: NetworkConfig,
    size: int,
    *,
    in_flight: int,
    overlap: bool,
    seed: int,
    codec: Mapping[str, Any],
) -> SimulatedClock:
    """The clock for `size` ranks on a validated `network` group, running the codec of these settings.

    Raises ValueError if the given codec times of another device lack an operation of the codec.
    """
    if not isinstance(network, SimulatedConfig):
        background = BackgroundLoad()
        if isinstance(network, ShapedConfig):
            background = BackgroundLoad(network.background_jobs, network.background_mb * MIB)
        links = make_links(network, size)
        return SimulatedClock(links, background=background, in_flight=in_flight, overlap=overlap, seed=seed)
    return SimulatedClock(
        make_links(network, size),
        compute=_compute_times(network, seed),
        codec_times=_codec_times(network.codec_times, codec, size),
        background=BackgroundLoad(network.background_jobs, network.background_mb * MIB),
        in_flight=in_flight,
        overlap=overlap,
        multicast=network.multicast,
        seed=seed,
    )


def _compute_times(network: SimulatedConfig, seed: int) -> ComputeTimes:
    blocks = () if network.compute_s is None else blocks_of(network, network.compute_s)
    return ComputeTimes(network.compute_s, network.forward_share, blocks, Variation.of(network, seed))


def _codec_times(given: str, codec: Mapping[str, Any], size: int) -> CodecTimes:
    if given == "measured":
        return MeasuredTimes()
    if given == "none":
        return NoTimes()
    from gradwire.codecs.registry import make_codec

    return read_bench_times(given, make_codec(**codec), size)

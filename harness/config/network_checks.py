"""Checks that a network fits its workers, and determines the nodes of a simulated one."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from gradwire.harness.config.rules import SHAPED, check
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_json
from gradwire.harness.network.settings import (
    BLOCKS,
    CODEC_TIMES,
    FASTEST,
    SLOWEST,
    STRAGGLERS,
    NetworkConfig,
    ShapedConfig,
    SimulatedConfig,
    background_jobs,
)
from gradwire.harness.record.seal import check_sealed
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, refused_as_config_error, shortened
from gradwire.harness.trainer.settings import WorldConfig

BENCH_FILE = "bench.json"
"""The file that `task=bench` writes to its directory."""

FACTORS = (1e-3, 1e3)
"""The smallest and the largest factor of a change of rates."""


def check_network(config: WorldConfig) -> None:
    """Refuse a network that these workers, whose number may still be open, cannot have. Raises
    ConfigError."""
    network = config.network
    if isinstance(network, ShapedConfig):
        check(SHAPED, config)
        _check_shaped_here()
    if isinstance(network, SimulatedConfig) and config.cluster.name != "virtual":
        cluster = f"cluster={config.cluster.name}"
        raise ConfigError(
            f"network={_choice(network)} is the clock of cluster=virtual and cannot be used with "
            f"{cluster}; leave {cluster} out, or use network=paced or network=shaped"
        )
    if config.cluster.name == "virtual":
        _check_engine(network)


def _check_engine(network: NetworkConfig) -> None:
    """Refuse a virtual cluster if the engine of its clock is missing. Raises ConfigError."""
    from gradwire.harness.timing.simulate.engine import require_engine

    subject = f"network={_choice(network)}" if isinstance(network, SimulatedConfig) else "cluster=virtual"
    try:
        require_engine(subject)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_links(network: NetworkConfig) -> NetworkConfig:
    """Refuse what contradicts itself in a network, whatever runs on it. Raises ConfigError.

    Returns the network; if `codec_times` names a folder of `task=bench`, it is replaced by the file in it.
    """
    if isinstance(network, ShapedConfig):
        _check_changes(network)
        _check_changed_rates(network)
    return _checked_simulated(network) if isinstance(network, SimulatedConfig) else network


def _checked_simulated(network: SimulatedConfig) -> SimulatedConfig:
    if network.fabric != "star" and (network.ranks_per_node == 1 or network.intra_rate_mbit is None):
        raise ConfigError(
            "network.fabric=two_level needs several workers in a node and the rate between them, given are "
            f"network.ranks_per_node={network.ranks_per_node} and "
            f"network.intra_rate_mbit={_text(network.intra_rate_mbit)}; add e.g. network.ranks_per_node=4 "
            "network.intra_rate_mbit=10000, or use network.fabric=star"
        )
    if network.ranks_per_node % network.nics:
        raise ConfigError(
            f"network.nics={network.nics} cannot be shared evenly by "
            f"network.ranks_per_node={network.ranks_per_node}; use a divisor of it"
        )
    _check_changes(network)
    _check_blocks(network)
    factors = network.straggler_range
    if factors and (len(factors) != 2 or factors[0] > factors[1]):
        given = ",".join(f"{factor:g}" for factor in factors)
        raise ConfigError(f"network.straggler_range=[{given}] is not [low, high]; use {STRAGGLERS}")
    if network.codec_times in CODEC_TIMES:
        return network
    return replace(network, codec_times=str(_bench_file(network.codec_times)))


def resolve_workers(network: NetworkConfig, given: int | None) -> tuple[NetworkConfig, int]:
    """The network, `nodes` filled in, and its workers: the `given` ones, else as many as it has places for.
    Raises ConfigError."""
    workers = given or workers_of(network)
    if workers is None:
        raise ConfigError(
            "cluster.workers is not given, and nothing else says it; add e.g. cluster.workers=16"
        )
    check_size(network, workers)
    return resolve_nodes(network, workers), workers


def workers_of(network: NetworkConfig) -> int | None:
    """The number of workers that a simulated network has room for; None if it is open, and for other
    networks."""
    if not isinstance(network, SimulatedConfig) or network.nodes is None:
        return None
    return network.nodes * network.ranks_per_node


def resolve_nodes(network: NetworkConfig, workers: int, *, given: bool = True) -> NetworkConfig:
    """A simulated network with the number of `nodes` that the workers fill. Raises ConfigError.

    A testbed's preset may be used in part; otherwise nodes and workers that are both given must agree.
    `given` says whether `cluster.workers` can be set; a recorded run has a fixed number of workers.
    """
    if not isinstance(network, SimulatedConfig):
        return network
    places, ranks = workers_of(network), network.ranks_per_node
    if not given:
        _check_recorded(network, workers, places)
    if workers % ranks:
        raise ConfigError(
            f"cluster.workers={workers} does not fill nodes of network.ranks_per_node={ranks}; use a "
            f"multiple of it, e.g. cluster.workers={workers - workers % ranks + ranks}"
        )
    if places is not None and (workers > places or (workers < places and network.preset == "custom")):
        raise ConfigError(
            f"cluster.workers={workers} contradicts network.nodes={network.nodes} with "
            f"network.ranks_per_node={ranks}, which is {places}; leave one of them out, or add "
            f"network.nodes={workers // ranks}"
        )
    return replace(network, nodes=workers // ranks)


def _check_recorded(network: SimulatedConfig, workers: int, places: int | None) -> None:
    """Refuse nodes that the workers of a recorded run do not fill exactly, or do not fit in."""
    ranks = network.ranks_per_node
    if workers % ranks:
        divisors = [size for size in range(2, workers + 1) if workers % size == 0]
        fix = min(divisors, key=lambda size: abs(size - ranks), default=None)
        use = f"add network.ranks_per_node={fix}" if fix is not None else "use network=simulated"
        raise ConfigError(
            f"network.ranks_per_node={ranks} is not filled by the run's {workers} "
            f"worker{'s' if workers > 1 else ''}; {use}"
        )
    if places is not None and workers > places:
        raise ConfigError(
            f"network.nodes={network.nodes} with network.ranks_per_node={ranks} hold {places} workers, and "
            f"the run has {workers}; add network.nodes={workers // ranks}"
        )


def check_size(network: NetworkConfig, workers: int) -> None:
    """Refuse more workers than shaped links support, and background jobs without a link.

    Raises ConfigError.
    """
    if workers < 2 and background_jobs(network):
        raise ConfigError(
            f"network.background_jobs={background_jobs(network)} needs links to share and cluster.workers=1 "
            "has none; use cluster.workers=2 or more, or leave it out"
        )
    if isinstance(network, ShapedConfig):
        from gradwire.harness.network.shaped.star import MOST_RANKS

        if workers > MOST_RANKS:
            raise ConfigError(
                f"cluster.workers={workers} is more than the {MOST_RANKS} that network=shaped can join; use "
                "fewer, or network=simulated"
            )


def check_codec_times(network: NetworkConfig, codec: Mapping[str, Any], workers: int) -> None:
    """Refuse another device's codec times that lack operations of the codec. Raises ConfigError."""
    if not isinstance(network, SimulatedConfig) or network.codec_times in CODEC_TIMES:
        return
    from gradwire.codecs.registry import make_codec
    from gradwire.harness.timing.simulate.codec_times import read_bench_times

    refused_as_config_error(read_bench_times, network.codec_times, make_codec(**codec), workers)


def _check_shaped_here() -> None:
    """Refuse shaped links on a machine that cannot make them. Raises ConfigError."""
    from gradwire.harness.network.shaped.check import why_not

    reason = why_not()
    if reason is not None:
        raise ConfigError(
            f"network=shaped cannot be used here: {reason}; network=paced and network=simulated need nothing"
        )


def _check_changes(network: ShapedConfig | SimulatedConfig) -> None:
    found = network.rate_changes
    setting = f"network.rate_changes={found}".replace(" ", "")
    use = "use e.g. network.rate_changes=[[60,0.5],[120,1]]: half the rate from second 60 to 120"
    low, high = FACTORS
    for change in found:
        if not (len(change) == 2 and all(map(_is_number, change))):
            raise ConfigError(f"{setting} has {change}, which is not [second, factor]; {use}")
        if change[0] < 0 or not low <= change[1] <= high:
            raise ConfigError(
                f"{setting} has {change}: seconds must be at least 0, factors at least {low:g} and at most "
                f"{high:g}; {use}"
            )
    seconds = [second for second, _ in found]
    if any(later <= earlier for earlier, later in pairwise(seconds)):
        raise ConfigError(f"{setting}: seconds must be in ascending order; {use}")


def _check_changed_rates(network: ShapedConfig) -> None:
    """Refuse changed rates that the kernel cannot shape."""
    for second, factor in network.rate_changes:
        rate = network.rate_mbit * factor
        if not SLOWEST <= rate <= FASTEST:
            lowest, highest = (f"{limit / network.rate_mbit:g}" for limit in (SLOWEST, FASTEST))
            raise ConfigError(
                f"network.rate_changes: factor {factor:g} from second {second:g} on makes {rate:g} Mbit/s of "
                f"network.rate_mbit={network.rate_mbit:g}, and links have {SLOWEST:g} to {FASTEST:g} Mbit/s; "
                f"use factors from {lowest} to {highest}"
            )


def _check_blocks(network: SimulatedConfig) -> None:
    """Refuse blocks without a computation time. Raises ConfigError."""
    use = f"use {BLOCKS}"
    for row in network.blocks:
        if not (len(row) == 3 and all(map(_is_number, row))):
            raise ConfigError(
                f"network.blocks has {shortened(row)} in {shortened(network.blocks)}, which is not "
                f"[parameters, forward share, backward share]; {use}"
            )
        parameters, *shares = row
        if parameters < 1 or parameters != int(parameters) or min(shares) < 0:
            raise ConfigError(
                f"network.blocks has {shortened(row)}: parameters must be a whole number of at least 1, "
                f"shares at least 0; {use}"
            )
    for column, direction in ((1, "forward"), (2, "backward")):
        if network.blocks and sum(row[column] for row in network.blocks) <= 0:
            raise ConfigError(f"network.blocks has {direction} shares that are all 0; {use}")


def check_spread(network: NetworkConfig, parallel: str, num_blocks: int | None) -> None:
    """Refuse blocks, and jitter by block, if computation is not given or passes are not by blocks.

    `parallel` is the parallelism's name; if its passes are by blocks, `num_blocks` is their number. Raises
    ConfigError.
    """
    if not isinstance(network, SimulatedConfig):
        return
    if network.blocks and num_blocks not in (None, len(network.blocks)):
        raise ConfigError(
            f"network.blocks has {len(network.blocks)} blocks and parallel={parallel} has {num_blocks}; give "
            f"as many, or set parallel.num_blocks={len(network.blocks)}"
        )
    by_block = network.jitter > 0 and network.jitter_per == "block"
    if by_block and network.compute_s is None and num_blocks is None:
        raise ConfigError(
            f"network.jitter_per=block needs times of blocks, and parallel={parallel} is measured by "
            "buckets; add e.g. network.compute_s=1.5, or use network.jitter_per=step"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _bench_file(given: str) -> Path:
    """The file of a device's codec times, which must be readable."""
    times, path = f"network.codec_times={given}", Path(given).expanduser()
    path = path / BENCH_FILE if path.is_dir() else path
    path = Path(os.path.realpath(path))  # what is kept of a run is looked at from anywhere
    if not path.is_file():
        raise ConfigError(
            f"{times}: no such file; use {', '.join(CODEC_TIMES)}, or the {BENCH_FILE} that task=bench wrote"
            f"{did_you_mean(given, CODEC_TIMES)}"
        )
    try:
        check_sealed(path)
        found = read_json(path, remedy="give one that task=bench wrote")
    except UnusableFileError as error:
        raise ConfigError(f"{times}: {error}") from None
    if not isinstance(found.get("rows"), list):
        raise ConfigError(f"{times} holds no rows of task=bench; give the {BENCH_FILE} that it wrote")
    return path


def _choice(network: SimulatedConfig) -> str:
    """The simulated network as written on the command line."""
    return "simulated" if network.preset == "custom" else network.preset


def _text(value: float | None) -> str:
    return "null" if value is None else f"{value:g}"

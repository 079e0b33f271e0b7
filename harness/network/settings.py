"""The settings of `network=`: the workers' links, and background traffic on them.

Rates are in Mbit/s (10⁶ bit/s) and hold each way: every link is full duplex.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gradwire.codecs.fields import (
    LIST,
    at_least,
    between,
    check_fields,
    check_names,
    list_of,
    one_of,
    plain_name,
)
from gradwire.harness.files.reading import printable

SLOWEST, FASTEST = 1e-3, 1e9
"""Rates of a link, in Mbit/s."""

LONGEST_LATENCY_S = 60.0

MOST_BACKGROUND_JOBS = 64

RATE_CHANGES = "e.g. [[60,0.5],[120,1]]: half the rate from second 60 to 120"
"""An example of rate changes. Each factor is relative to the network's initial rate, and holds until the next
change."""

BLOCKS = "e.g. [[1e6,0.4,0.6],[2e6,0.6,0.4]]: parameters, share of the forward and of the backward pass"
"""An example of blocks, in the order of the forward pass. Shares are normalized by column, so that a paper's
figures can be given as printed."""

STRAGGLERS = "e.g. [1.5,3]: factors of the compute time, drawn evenly from 1.5 to 3"

FORWARD_SHARE = 1 / 3
"""The forward pass's default share of a given compute time: the backward pass takes twice as long."""

PAPERS_COMPUTATION = {("aqgb", "resnet50"): (1.5, 0.365)}
"""The computation times on a paper's testbed, as printed there, by preset and model: `compute_s` and
`forward_share`. AQGB §5.1.2: U[0.9, 1.1] × 1.5 s for forward and backward; Table 1: 0.365 of it forward. The
other papers print step times that contain communication, or throughput."""

FULL_SIZES = ("gpu", "paper")
"""Sizes at which a model has the shape that the papers trained."""

LARGEST_FACTOR = 1e6
"""The largest factor that a straggler's compute time grows by."""

MOST_RANKS = 1024
"""Numbers of nodes, ranks and NICs of a simulated network."""

SHARED, MEASURED, FROM_FILE = "shared", "measured", "file:"
"""Values of `compute`; the last one is a prefix that a path follows."""

CODEC_TIMES = ("measured", "none")
"""Values of `codec_times` other than a file: the times on this machine, or zero."""


@dataclass(frozen=True)
class UnpacedConfig:
    """The network as it is, without limits."""

    name: str = one_of("none")
    # of cluster=virtual: shared by the runs of a sweep, measured in each step, or file:<profile>
    compute: str = SHARED


@dataclass(frozen=True)
class PacedConfig:
    """Links limited in user space: each message takes latency + bytes / rate."""

    name: str = one_of("paced")
    rate_mbit: float = at_least(SLOWEST, 200.0, FASTEST)  # Mbit/s out of each worker
    latency_s: float = at_least(0, 0.0, LONGEST_LATENCY_S)  # seconds added to each message
    # of cluster=virtual: shared by the runs of a sweep, measured in each step, or file:<profile>
    compute: str = SHARED


@dataclass(frozen=True)
class ShapedConfig:
    """Real workers in network namespaces, each on a link shaped by the kernel; the links form a star.

    A queue holds at least one packet, which in the kernel may have up to 64 KiB.
    """

    name: str = one_of("shaped")
    # Mbit/s into and out of each worker, headers included
    rate_mbit: float = at_least(SLOWEST, 200.0, FASTEST)
    # KiB waiting at a link's ends; null: the kernel's 1000 packets
    queue_kb: int | None = at_least(64, 256, 1 << 21)
    # competing ring all-reduce jobs on the same links (DynamiQ §5.2)
    background_jobs: int = at_least(0, 0, MOST_BACKGROUND_JOBS)
    # MiB of float32 that each background job reduces, repeatedly
    background_mb: float = at_least(1e-3, 25.0, 65_536)
    # [[s, factor], ...]: from second s of the training clock on, rates are multiplied by factor
    rate_changes: list[Any] = list_of(kinds=(LIST,), hint=RATE_CHANGES)


@dataclass(frozen=True)
class SimulatedConfig:
    """The network of the virtual cluster's clock: links of a star or a two-level network, shared fairly;
    compute times are measured or given."""

    name: str = one_of("simulated")
    preset: str = plain_name("custom")  # the testbed whose figures these are, in the line a run prints first
    fabric: str = one_of("star", "two_level")  # every worker on one switch; or nodes of several workers
    rate_mbit: float = at_least(SLOWEST, 200.0, FASTEST)  # Mbit/s of each NIC
    latency_s: float = at_least(0, 0.0, LONGEST_LATENCY_S)  # seconds from one NIC to another
    efficiency: float = between(1e-3, 1, 1.0)  # share of every rate that carries payload
    # number of nodes; null: as many as cluster.workers fill; in a preset, the maximum
    nodes: int | None = at_least(1, None, MOST_RANKS)
    ranks_per_node: int = at_least(1, 1, MOST_RANKS)  # two_level: workers in a node
    nics: int = at_least(1, 1, MOST_RANKS)  # two_level: NICs of a node, its workers spread evenly over them
    # two_level: Mbit/s of each worker inside its node
    intra_rate_mbit: float | None = at_least(SLOWEST, None, FASTEST)
    # two_level: seconds from one worker of a node to another
    intra_latency_s: float = at_least(0, 0.0, LONGEST_LATENCY_S)
    # two_level: core capacity, each way, is the sum of all NIC rates divided by this
    oversubscription: float = at_least(1, 1.0, 1e6)
    # a message to several workers leaves its sender once and the switch copies it
    multicast: bool = False
    # [[s, factor], ...]: from second s of the training clock on, rates are multiplied by factor
    rate_changes: list[Any] = list_of(kinds=(LIST,), hint=RATE_CHANGES)
    # competing ring all-reduce jobs on the same links (DynamiQ §5.2)
    background_jobs: int = at_least(0, 0, MOST_BACKGROUND_JOBS)
    # MiB of float32 that each background job reduces, repeatedly
    background_mb: float = at_least(1e-3, 25.0, 65_536)
    # compute times are scaled by a uniform random factor in [1 - jitter, 1 + jitter]
    jitter: float = between(0, 1, 0.0, high_included=False)
    # step: a factor for all that a rank computes in a step; block: one for each pass of each block in it
    jitter_per: str = one_of("step", "block")
    straggler_share: float = between(0, 1, 0.0)  # how likely a rank is a straggler in a step
    # factor by which a straggler's compute time grows
    straggler_factor: float = at_least(1, 2.0, LARGEST_FACTOR)
    # [low, high]: a straggler's factor is drawn evenly from here, in place of straggler_factor and jitter
    straggler_range: list[float] = list_of(hint=STRAGGLERS, low=1e-3, high=LARGEST_FACTOR)
    # computation: shared by the runs of a sweep, measured in each step, or file:<profile>; see also compute_s
    compute: str = SHARED
    # forward, backward and update of a step; null: as `compute` says
    compute_s: float | None = at_least(1e-9, None, 1e6)
    # the forward pass's share of compute_s
    forward_share: float = between(0, 1, FORWARD_SHARE, low_included=False, high_included=False)
    # [[parameters, forward share, backward share], ...]: how compute_s is spread over the model's blocks
    blocks: list[Any] = list_of(kinds=(LIST,), hint=BLOCKS)
    # measured: on this machine; none: codecs take no time; or the path of a bench.json (task=bench)
    codec_times: str = CODEC_TIMES[0]


NetworkConfig = UnpacedConfig | PacedConfig | ShapedConfig | SimulatedConfig

NETWORKS: dict[str, type[NetworkConfig]] = {
    "none": UnpacedConfig,
    "paced": PacedConfig,
    "shaped": ShapedConfig,
    "simulated": SimulatedConfig,
}


def recorded_network(recorded: Mapping[str, Any]) -> NetworkConfig:
    """The network of a finished run. Raises ValueError in one line if it is not a network."""
    schema = NETWORKS.get(str(recorded.get("name")))
    if schema is None:
        raise ValueError(f"network.name={printable(str(recorded.get('name')))} of a record is unknown")
    try:
        check_names(
            [each.name for each in fields(schema)], recorded, "network", f"network={recorded['name']}"
        )
        check_fields(schema, recorded, "network")
    except ValueError as error:
        raise ValueError(f"a record's {printable(str(error))}") from None
    return schema(**recorded)


def background_jobs(network: NetworkConfig) -> int:
    """The number of background jobs that share the links."""
    return network.background_jobs if isinstance(network, ShapedConfig | SimulatedConfig) else 0


def with_papers_computation(network: NetworkConfig, model: str, size: str) -> NetworkConfig:
    """A testbed with the computation times that its paper prints for the model at its full size, unless the
    configuration sets others."""
    if not isinstance(network, SimulatedConfig) or size not in FULL_SIZES:
        return network
    printed = PAPERS_COMPUTATION.get((network.preset, model))
    if printed is None or network.compute_s is not None or network.compute != SHARED:
        return network
    compute_s, forward_share = printed
    return replace(network, compute_s=compute_s, forward_share=forward_share)

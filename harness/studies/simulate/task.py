"""`task=simulate`: a training whose gradients are broadcast in blocks, without tensors (AQGB §5)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gradwire.harness.config.network_checks import resolve_workers
from gradwire.harness.network.settings import SimulatedConfig, background_jobs
from gradwire.harness.studies.simulate.study import (
    SPLITS,
    USUAL_BITS,
    USUAL_FLOOR,
    USUAL_GAIN,
    USUAL_MARGIN_S,
    USUAL_SPLIT,
    SimulateConfig,
    SimulateTask,
)
from gradwire.harness.studies.study import Measured
from gradwire.harness.timing.simulate.engine import require_engine

OF_SCHEME = {
    "bits": ("fixed", USUAL_BITS),
    "floor": ("aqgb", USUAL_FLOOR),
    "margin_s": ("aqgb", USUAL_MARGIN_S),
    "gain": ("aqgb", USUAL_GAIN),
}
"""Settings of a single scheme, and their defaults."""

MOST_EVENTS = 1 << 28
"""The approximate largest number of events of a simulation, which take some minutes."""


def resolve(config: SimulateTask) -> SimulateTask:
    """Fills in workers and null values; raises ValueError in one line for impossible configurations."""
    require_engine("task=simulate")
    network, cluster = config.network, config.cluster
    if not isinstance(network, SimulatedConfig):
        raise ValueError(
            f"network={network.name} is not a simulated clock, which task=simulate needs; leave it out, "
            f"or use "
            "network=simulated"
        )
    if cluster.name != "virtual":
        raise ValueError(
            f"cluster={cluster.name} runs workers, and task=simulate has none; leave it out, or use "
            "cluster=virtual"
        )
    if network.codec_times == "measured":  # the group's default, which cannot be asked for here
        network = replace(network, codec_times="none")
    _check_network(network)
    resolved, workers = resolve_workers(network, cluster.workers)
    assert isinstance(resolved, SimulatedConfig)
    if workers < 2:
        raise ValueError(
            "cluster.workers=1 has no other worker to broadcast to; use cluster.workers=2 or more"
        )
    given = _with_usual(config.simulate, bool(resolved.blocks))
    _check_length(resolved, given, workers)
    return replace(config, network=resolved, simulate=given, cluster=replace(cluster, workers=workers))


def _check_network(network: SimulatedConfig) -> None:
    if network.fabric != "star":
        raise ValueError(
            f"network.fabric={network.fabric} cannot be simulated here: task=simulate has all workers on one "
            "switch; use network.fabric=star, or a training run"
        )
    if background_jobs(network):
        raise ValueError(
            f"network.background_jobs={background_jobs(network)} cannot be simulated here; leave it out, or "
            "use network.rate_changes"
        )
    if network.codec_times != "none":
        raise ValueError(
            f"network.codec_times={network.codec_times}: task=simulate has no tensors that a codec could "
            "work on; leave it out"
        )
    if network.compute_s is None:
        raise ValueError(
            "network.compute_s=null would be measured, and task=simulate computes nothing; use e.g. "
            "network.compute_s=1.5"
        )


def _with_usual(given: SimulateConfig, has_blocks: bool) -> SimulateConfig:
    """Replaces null by the defaults, for the settings that the scheme has."""
    filled: dict[str, object] = {}
    for name, (scheme, usual) in OF_SCHEME.items():
        if given.scheme == scheme and getattr(given, name) is None:
            filled[name] = usual
    if given.split is not None and has_blocks:
        raise ValueError(
            f"simulate.split={given.split} contradicts network.blocks, which gives other blocks; leave one "
            "of them out"
        )
    if given.split is not None and given.split not in SPLITS:
        raise ValueError(
            f"simulate.split={given.split} is not one of AQGB's ways to split ResNet50; choose "
            f"{', '.join(map(str, SPLITS))}, or give network.blocks"
        )
    split = None if has_blocks else given.split or USUAL_SPLIT
    return replace(given, split=split, **filled)  # type: ignore[arg-type]


def _check_length(network: SimulatedConfig, given: SimulateConfig, workers: int) -> None:
    """Refuses simulations that would take more than some minutes."""
    assert network.compute_s is not None
    blocks = len(network.blocks) or given.split or 0
    rounds = given.seconds / (network.compute_s * (1 - network.jitter))
    copies = 1 if network.multicast else workers - 1
    if rounds * blocks * workers**2 * copies <= MOST_EVENTS:
        return
    at_most = MOST_EVENTS / blocks / workers**2 / copies * network.compute_s * (1 - network.jitter)
    raise ValueError(
        f"simulate.seconds={given.seconds:g} are about {rounds:.0f} rounds of {blocks} blocks among "
        f"{workers} workers, which would take too long; use at most simulate.seconds={at_most:.3g}, or fewer "
        "workers"
    )


def name(config: SimulateTask) -> str:
    """`simulate-<scheme>[<bits>]-<blocks>blocks-n<workers>-<network>-s<seed>`."""
    network, given = config.network, config.simulate
    assert isinstance(network, SimulatedConfig)
    where = network.name if network.preset == "custom" else network.preset
    scheme = given.scheme + (str(given.bits) if given.bits else "")
    blocks = f"{len(network.blocks) or given.split}blocks"
    return "-".join(["simulate", scheme, blocks, f"n{config.cluster.size}", where, f"s{config.seed}"])


def measure(config: SimulateTask, directory: Path) -> Measured:
    """Simulates the rounds that fit into the given time, and computes their figures."""
    from gradwire.harness.studies.simulate.figures import summarize
    from gradwire.harness.studies.simulate.model import simulated
    from gradwire.harness.studies.simulate.plots import training_plots

    rows = simulated(config)
    summary = summarize(config, rows)
    return Measured(summary.to_json(), plots=lambda: training_plots(summary, rows))

"""Sets up the network around the ranks of a run with `network=shaped`, and records it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from gradwire.harness.models.build import build_model
from gradwire.harness.network.shaped.network import ShapedNetwork
from gradwire.harness.network.shaped.star import LinkLimits
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.networks import read_networks, write_networks

OFFLINE = "HF_HUB_OFFLINE"


@contextmanager
def shaped_network(config: DictConfig, directory: Path) -> Iterator[ShapedNetwork | None]:
    """Provides the links of `network=shaped`, with background traffic, while the block lasts; None on other
    networks.

    Measures what an idle link carries and records it in `directory` beside the figures of earlier attempts;
    at the end it records what the background traffic carried. Raises ValueError if the network cannot be
    made.
    """
    if config.network.name != "shaped":
        yield None
        return
    fetch_weights(config)
    earlier, attempt = read_networks(directory), Attempts.read(directory)
    limits = LinkLimits(config.network.rate_mbit, config.network.queue_kb)
    with ShapedNetwork(config.cluster.workers, limits) as network:
        found = {
            "from_step": attempt.from_step if attempt else 0,
            "rate_mbit": limits.rate_mbit,
            "queue_kb": limits.queue_kb,
            "goodput_mbit": network.measure_goodput(),
            "congestion_control": network.congestion_control,
            "rivals": config.network.background_jobs,
        }

        def record(rival_goodput_mbit: Sequence[float]) -> None:
            write_networks(directory, [*earlier, {**found, "rival_goodput_mbit": list(rival_goodput_mbit)}])

        record([])
        with _without_hub(), _background(config, network, record):
            yield network


@contextmanager
def _background(
    config: DictConfig, network: ShapedNetwork, record: Callable[[Sequence[float]], None]
) -> Iterator[None]:
    if not config.network.background_jobs:
        yield
        return
    network.start_background(config.network.background_jobs, config.network.background_mb)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a full disk may be what ended the run
            record(network.stop_background())


def fetch_weights(config: DictConfig) -> None:
    """Fetches the hub's weights into the cache, because the hub cannot be reached from inside the network.

    Loads the model as the ranks will and drops it. Raises ValueError if the weights cannot be had.
    """
    if "model" in config and config.model.weights == "pretrained" and config.model.path is None:
        build_model(OmegaConf.to_object(config.model), seed=config.seed)  # type: ignore[arg-type]


@contextmanager
def _without_hub() -> Iterator[None]:
    """Processes started in this block use caches only, and do not wait for answers that cannot come."""
    before = os.environ.get(OFFLINE)
    os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OFFLINE]
        else:
            os.environ[OFFLINE] = before

"""Sets up the network around the ranks of a run with `network=shaped`, and records it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.harness.models.build import build_model
from gradwire.harness.models.settings import ModelConfig
from gradwire.harness.network.configured import rate_changes
from gradwire.harness.network.settings import NetworkConfig, ShapedConfig
from gradwire.harness.network.shaped.network import ShapedNetwork
from gradwire.harness.network.shaped.star import LinkLimits
from gradwire.harness.record.attempts import Attempts, read_networks, write_networks

OFFLINE = "HF_HUB_OFFLINE"


@contextmanager
def shaped_network(network: NetworkConfig, size: int, directory: Path) -> Iterator[ShapedNetwork | None]:
    """Provides the links of `network=shaped`, with background traffic, while the block lasts; None on other
    networks.

    Measures the throughput of an idle link and records it in `directory` next to the figures of earlier
    attempts. Also records every rate change when it is made and, at the end, the throughput of the background
    traffic. Raises ValueError if the network cannot be made.
    """
    if not isinstance(network, ShapedConfig):
        yield None
        return
    earlier, attempt = read_networks(directory), Attempts.read(directory)
    limits = LinkLimits(network.rate_mbit, network.queue_kb)
    with ShapedNetwork(size, limits) as links:
        found: dict[str, Any] = {
            "from_step": attempt.from_step if attempt else 0,
            "rate_mbit": limits.rate_mbit,
            "queue_kb": limits.queue_kb,
            "goodput_mbit": links.measure_goodput(),
            "congestion_control": links.congestion_control,
            "background_jobs": network.background_jobs,
            "background_goodput_mbit": list[float](),
        }

        def record(**figures: Any) -> None:
            found.update(figures)
            write_networks(directory, [*earlier, found])

        record()
        with _without_hub(), _background(network, links, record), _rate_changes(network, links, record):
            yield links


@contextmanager
def _rate_changes(network: ShapedConfig, links: ShapedNetwork, record: Callable[..., None]) -> Iterator[None]:
    if not network.rate_changes:
        yield
        return
    record(rate_changes=[])
    links.start_rate_changes(
        rate_changes(network), lambda made: record(rate_changes=[asdict(change) for change in made])
    )
    try:
        yield
    finally:
        links.stop_rate_changes()


@contextmanager
def _background(network: ShapedConfig, links: ShapedNetwork, record: Callable[..., None]) -> Iterator[None]:
    if not network.background_jobs:
        yield
        return
    links.start_background(network.background_jobs, network.background_mb)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a full disk may be what ended the run
            record(background_goodput_mbit=links.stop_background())


def fetch_weights(model: ModelConfig, seed: int) -> None:
    """Downloads the hub's weights into the cache, because the hub cannot be reached from inside the network.

    Loads the model as the ranks will and drops it. Raises ValueError if the weights cannot be had.
    """
    if model.weights == "pretrained" and model.path is None:
        build_model(model, seed=seed)


@contextmanager
def _without_hub() -> Iterator[None]:
    """Makes processes started in this block use caches only, so that they do not wait for answers that cannot
    come."""
    before = os.environ.get(OFFLINE)
    os.environ[OFFLINE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OFFLINE]
        else:
            os.environ[OFFLINE] = before

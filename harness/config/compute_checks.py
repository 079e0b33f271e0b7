"""Checks `network.compute` against the run, and that a profile has all that the run needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.network.settings import (
    FROM_FILE,
    MEASURED,
    PAPERS_COMPUTATION,
    SHARED,
    NetworkConfig,
    ShapedConfig,
    SimulatedConfig,
)
from gradwire.harness.record.directory import found_profiles
from gradwire.harness.record.identity import computation_id, computation_of
from gradwire.harness.record.profiles import computation_text, computations_text, read_profiles
from gradwire.harness.runtime.errors import ConfigError, did_you_mean

FULL_SIZES = ("gpu", "paper")
"""Sizes at which a model has the shape that the papers trained."""


def check_compute(network: NetworkConfig, settings: Mapping[str, Any]) -> NetworkConfig:
    """Refuse unknown values of `network.compute`, and a profile without the computation of a run with
    these plain settings. Raises ConfigError.

    Returns the network; `compute`, where it names a run, a sweep or a file, with the absolute path.
    """
    if isinstance(network, ShapedConfig):
        return network
    _check_value(network.compute)
    if not network.compute.startswith(FROM_FILE):
        return network
    given = network.compute.removeprefix(FROM_FILE)
    try:
        path = found_profiles(Path(given))
        found = read_profiles(path)
    except UnusableFileError as error:
        named = f"{error.problem}; {error.remedy}" if error.path == Path(given) else str(error)
        raise ConfigError(f"network.compute={network.compute}: {named}") from None
    if found.computation(computation_id(settings)) is None:
        raise ConfigError(
            f"network.compute={network.compute} has no computation of these settings "
            f"({computation_text(computation_of(settings))}), only: {computations_text(found)}; give another "
            "profile, or leave it out"
        )
    return replace(network, compute=f"{FROM_FILE}{path}")


def _check_value(compute: str) -> None:
    known = (SHARED, MEASURED)
    if compute not in known and not compute.startswith(FROM_FILE):
        raise ConfigError(
            f"network.compute={compute}: use {SHARED}, {MEASURED} or {FROM_FILE}<profile>"
            f"{did_you_mean(compute, known)}"
        )
    if compute == FROM_FILE:
        raise ConfigError(
            f"network.compute={compute} names no file; use {FROM_FILE}<profile>, e.g. {FROM_FILE}"
            "outputs/sweeps/demo"
        )


def with_papers_computation(network: NetworkConfig, model: str, size: str) -> NetworkConfig:
    """A testbed with the computation that its paper prints for the model at its full size, unless the
    configuration says another."""
    if not isinstance(network, SimulatedConfig) or size not in FULL_SIZES:
        return network
    printed = PAPERS_COMPUTATION.get((network.preset, model))
    if printed is None or network.compute_s is not None or network.compute != SHARED:
        return network
    compute_s, forward_share = printed
    return replace(network, compute_s=compute_s, forward_share=forward_share)

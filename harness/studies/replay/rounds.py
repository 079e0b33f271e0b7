"""Synchronizes saved gradients, with all ranks in this process, and summarizes the repeats."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.interface import ChoosesWidths, Codec, Layout, Round
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronize_buckets
from gradwire.harness.record.gradients import SavedGradients
from gradwire.harness.record.identity import data_fingerprint, run_id
from gradwire.harness.record.provenance import provenance
from gradwire.harness.studies.distribution import (
    RateDistortionCurve,
    errors_by_width,
    exact_mean,
    quantiles,
    relative_errors,
    vnmse,
)
from gradwire.harness.studies.replay.study import ReplaySummary, ReplayTask, spread_of
from gradwire.harness.timing.measure.step_figures import wire_bits, wire_bits_by_level


@dataclass(frozen=True)
class Repeat:
    """One synchronization: its result, its bytes, and the time of its codec.

    `mean` is (coordinates,) on the CPU; `bytes_by_rank` holds the bytes that each rank sent, by phase, and
    `bytes_between_nodes` the bytes that all ranks sent to other nodes; `codec_s` is the time of codec work on
    the busiest rank, in seconds; `logged` holds the figures that the codec logs.
    """

    seed: int
    mean: Tensor
    bytes_by_rank: tuple[Mapping[str, int], ...]
    bytes_between_nodes: int
    codec_s: float
    logged: Mapping[str, float]


class Replay:
    """All workers' gradients of one step, which `world` can synchronize repeatedly.

    `values` is (workers, coordinates), bucket by bucket as in `layouts`; buckets are on the world's device.
    """

    def __init__(self, values: Tensor, layouts: Sequence[Layout], world: VirtualWorld) -> None:
        self._world = world
        placed = [replace(layout, device=world.device) for layout in layouts]
        lengths = [layout.numel for layout in layouts]
        self._buckets = {
            rank: list(zip(placed, torch.split(values[rank].to(world.device), lengths), strict=True))
            for rank in world.ranks
        }

    def repeat(self, make: Callable[[], Codec], seed: int, rounds: int, *, check_hashes: bool) -> Repeat:
        """Synchronizes `rounds` times with new codecs and returns the last round.

        `check_hashes` compares the results over all ranks. Raises what the codec raises.
        """
        codecs = {rank: make() for rank in self._world.ranks}
        for step in range(rounds):
            self._forget()
            programs = {
                rank: synchronize_buckets(
                    codec, step, seed, self._world.size, self._buckets[rank], check_hashes=check_hashes
                )
                for rank, codec in codecs.items()
            }
            means = self._world.run_step(step, programs).results[0]
            logged = [codec.end_step(step) for codec in codecs.values()][0]
        sent = tuple(dict(self._world.traffic[rank].by_phase) for rank in self._world.ranks)
        between = sum(self._world.traffic[rank].between_nodes for rank in self._world.ranks)
        return Repeat(seed, torch.cat(means).cpu(), sent, between, self._codec_seconds(), logged)

    def widths(self, codec: Codec, seed: int) -> Tensor | None:
        """Bits per coordinate of each super-group, bucket by bucket: (super-groups,) int64; None for a codec
        without widths."""
        if not isinstance(codec, ChoosesWidths):
            return None
        found = []
        for bucket in range(len(self._buckets[0])):
            runs = {rank: self._choice(codec, rank, seed, bucket) for rank in self._world.ranks}
            found.append(self._world.run(runs)[0].cpu())
        return torch.cat(found)

    def _choice(self, codec: ChoosesWidths, rank: int, seed: int, bucket: int) -> Collective[Tensor]:
        layout, x = self._buckets[rank][bucket]
        this_round = Round(0, layout, rank, self._world.size, seed, bucket)
        return lambda comm: codec.super_group_widths(x, this_round, comm)

    def _forget(self) -> None:
        for rank in self._world.ranks:
            self._world.traffic[rank].clear()
            self._world.recorders[rank].drain()

    def _codec_seconds(self) -> float:
        spans = {rank: self._world.recorders[rank].drain() for rank in self._world.ranks}
        return max(
            sum(span.end - span.start for span in own if span.kind == "codec") for own in spans.values()
        )


SMALLEST_BOUND = 1e-12

CURVE_BITS = 16
"""The bound is recorded for 0 to this many bits."""


def summarize_replay(
    config: ReplayTask,
    gradients: SavedGradients,
    values: Tensor,
    buckets: Sequence[int],
    repeats: Sequence[Repeat],
    widths: Tensor | None,
) -> ReplaySummary:
    """The documented keys of `summary.json`.

    `values` holds the gradients of the workers that took part, `buckets` the coordinates of each bucket,
    `widths` the bits of each super-group if the codec chooses them.
    """
    mean = exact_mean(values)
    errors = [vnmse(repeat.mean, mean) for repeat in repeats]
    spread = spread_of(errors)
    codec_s = statistics.median(repeat.codec_s for repeat in repeats)
    bits = _bits(config, repeats[-1], values.shape[1])
    return ReplaySummary(
        **spread,
        vnmse=errors,
        super_group_errors=_distribution(repeats, mean),
        errors_by_width={} if widths is None else _by_width(repeats, mean, buckets, widths),
        wire_bits_per_coordinate=sum(bits.values()) or None,
        wire_bits_by_phase=bits,
        wire_bits_by_level=_by_level(config, repeats[-1], values.shape[1]),
        bytes_sent_per_rank=[sum(sent.values()) for sent in repeats[-1].bytes_by_rank],
        **_against_bound(mean, sum(bits.values()), spread["vnmse_mean"]),
        codec_s=codec_s,
        codec_ns_per_coordinate=1e9 * codec_s / values.shape[1],
        repeats=len(repeats),
        rounds=config.replay.rounds,
        seed=config.seed,
        workers=values.shape[0],
        num_coordinates=values.shape[1],
        num_buckets=len(buckets),
        logged=dict(repeats[-1].logged),
        gradients=_described(Path(config.gradients), gradients),
        kernel_backend=config.kernels.name,
        config_hash=run_id(config),
        **provenance(config.mapping()),
    )


def _distribution(repeats: Sequence[Repeat], mean: Tensor) -> list[float]:
    """Quantiles of the super-groups' relative errors; empty if they are not finite or no group has energy."""
    errors = relative_errors([repeat.mean for repeat in repeats], mean)
    return quantiles(errors) if errors.numel() and bool(errors.isfinite().all()) else []


def _by_width(
    repeats: Sequence[Repeat], mean: Tensor, buckets: Sequence[int], widths: Tensor
) -> dict[str, list[float]]:
    """Quantiles for each width that occurs; those that are not finite are excluded."""
    found = errors_by_width([repeat.mean for repeat in repeats], mean, buckets, widths)
    usable = {width: own for width, own in found.items() if own.numel() and bool(own.isfinite().all())}
    return {str(width): quantiles(own) for width, own in usable.items()}


def _bits(config: ReplayTask, repeat: Repeat, numel: int) -> dict[str, float]:
    """Wire bits per coordinate by phase; empty if bytes were not counted."""
    sent: Counter[str] = Counter()
    for by_phase in repeat.bytes_by_rank:
        sent.update(by_phase)
    nodes = num_nodes(config.cluster)
    gradients_sent = make_schedule(config.topology.name, config.cluster.size, nodes).gradients_sent
    bits = {phase: wire_bits(count, gradients_sent, numel) for phase, count in sorted(sent.items())}
    return {phase: value for phase, value in bits.items() if value is not None}


def _by_level(config: ReplayTask, repeat: Repeat, numel: int) -> dict[str, float] | None:
    if num_nodes(config.cluster) == 1:
        return None
    total = sum(sum(sent.values()) for sent in repeat.bytes_by_rank)
    gradients_sent = make_schedule(config.topology.name, config.cluster.size).gradients_sent
    return wire_bits_by_level(total, repeat.bytes_between_nodes, gradients_sent, numel)


def _against_bound(mean: Tensor, bits: float, error: float | None) -> dict[str, Any]:
    if not bits or not bool(mean.isfinite().all()) or not float(mean.abs().max()):
        return {"bound_vnmse": None, "db_above_bound": None, "bound_curve": []}
    curve = RateDistortionCurve.of(mean)
    if curve.bound(bits) < SMALLEST_BOUND:  # a handful of coordinates: nothing to compare with
        return {"bound_vnmse": None, "db_above_bound": None, "bound_curve": []}
    return {
        "bound_curve": [curve.bound(whole) for whole in range(CURVE_BITS + 1)],
        "bound_vnmse": curve.bound(bits),
        "db_above_bound": curve.decibels_above(error, bits) if error else None,
    }


def _described(path: Path, gradients: SavedGradients) -> dict[str, Any]:
    about = {key: value for key, value in (gradients.about or {}).items() if key != "buckets"}
    return {"file": path.name, "hash": data_fingerprint(path, every_file=True, whole=True)[:12], **about}

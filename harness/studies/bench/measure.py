"""Measures every operation on every kind of bucket with every implementation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.studies.bench.clocks import Times, time_on_cpu, time_on_gpu
from gradwire.harness.studies.bench.operation import Case, Operation
from gradwire.harness.studies.bench.rows import Row
from gradwire.harness.timing.measure.metric import quotient

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

DEFAULT = "default"


@dataclass(frozen=True)
class Settings:
    """What to measure, and for how long each at least; `kernels` names the compiled kernels, or is
    `default`."""

    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int, ...]
    seconds: float
    kernels: str
    device: torch.device
    seed: int


@dataclass(frozen=True)
class Piece:
    """An operation on one kind of bucket."""

    operation: Operation
    numel: int
    dtype: str

    @property
    def key(self) -> tuple[str | int, ...]:
        """What tells it from the others."""
        return self.operation.name, self.dtype, self.numel


def pieces(operations: Sequence[Operation], settings: Settings) -> list[Piece]:
    """All that is to be measured, in this order: those on the same bucket together."""
    return [
        Piece(operation, numel, dtype)
        for numel in settings.sizes
        for dtype in settings.dtypes
        for operation in operations
        if dtype in operation.dtypes
    ]


class Measuring:
    """Measures pieces, and once for those on the same bucket how fast a copy of it is."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kind: tuple[int, str] | None = None

    def rows(self, piece: Piece) -> list[Row]:
        """The rows of a piece, each implementation's."""
        settings = self._settings
        if self._kind != (piece.numel, piece.dtype):
            self._x = x = bucket(piece.numel, piece.dtype, settings)
            self._copy_rate = {n: _copy_rate(x, settings, n) for n in {1, *_threads(settings)}}
            self._kind = (piece.numel, piece.dtype)
        return list(_rows(piece.operation, self._x, self._copy_rate, settings))


def bucket(numel: int, dtype: str, settings: Settings) -> Tensor:
    """Normally distributed coordinates drawn from the seed, (numel,), the same on every device."""
    generator = torch.Generator().manual_seed(settings.seed)
    return torch.randn(numel, generator=generator).to(DTYPES[dtype]).to(settings.device)


def _threads(settings: Settings) -> tuple[int, ...]:
    """The numbers of host threads to measure with; a GPU needs one."""
    return settings.threads if settings.device.type == "cpu" else (1,)


def _copy_rate(x: Tensor, settings: Settings, threads: int) -> float | None:
    """Bytes per second that a copy of the bucket reads and writes; None if the clock sees no time pass."""
    target = torch.empty_like(x)
    case = Case(lambda: target.copy_(x), (x,), (target,))
    return quotient(case.bytes_read + case.bytes_written, _time(case, settings, threads).shortest_s)


def _rows(
    operation: Operation, x: Tensor, copy_rate: Mapping[int, float | None], settings: Settings
) -> Iterator[Row]:
    peers = _time_peers(operation, x, settings)
    default_s: float | None = None

    def row(case: Case, name: str, threads: int, times: Times, others: Mapping[str, Times]) -> Row:
        return Row.of(
            case,
            times,
            operation=operation.name,
            dtype=str(x.dtype).removeprefix("torch."),
            numel=x.numel(),
            implementation=name,
            threads=threads,
            value_bytes=x.nbytes,
            copy_bytes_per_s=copy_rate[threads],
            default_s=default_s,
            peers_s={peer: found.shortest_s for peer, found in others.items()},
        )

    for name, threads in _implementations(settings):
        with using_kernels(name):  # a case may hold what these kernels have made
            case = operation.make(x)
            times = _time(case, settings, threads)
        default_s = times.shortest_s if default_s is None else default_s
        yield row(case, name, threads, times, peers)
    for name, times in peers.items():
        yield row(case, name, 1, times, {})


def _implementations(settings: Settings) -> list[tuple[str, int]]:
    """The implementations and their numbers of threads; the definition on one thread comes first."""
    compiled = [(settings.kernels, threads) for threads in _threads(settings)]
    return [(DEFAULT, 1), *(compiled if settings.kernels != DEFAULT else [])]


def _time_peers(operation: Operation, x: Tensor, settings: Settings) -> dict[str, Times]:
    """Times the peers that are available, on one thread."""
    calls = {peer.name: peer.make(x) for peer in operation.peers}
    return {name: _time(Case(run, (x,), ()), settings, 1) for name, run in calls.items() if run is not None}


def _time(case: Case, settings: Settings, threads: int) -> Times:
    if settings.device.type == "cpu":
        return time_on_cpu(case.run, settings.seconds, threads)
    return time_on_gpu(case.run, settings.seconds, case.bytes_read + case.bytes_written, settings.device)

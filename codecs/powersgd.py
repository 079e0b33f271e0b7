"""PowerSGD: the workers' mean gradient as a product of two thin matrices (Vogels et al., NeurIPS 2019).

With M a worker's gradient of one parameter as a matrix (m, n), plus its residual, and Q the factor kept from
the round before (Algorithm 1):

P = M Q, averaged over the workers and made orthonormal
    Q = Mᵀ P, averaged over the workers
    M̂ = P Qᵀ, the same on every worker

Q is made orthonormal first, as in torch's hook; this only changes the scale of P. Both factors are kept as
rows, Pᵀ (rank, m) and Qᵀ (rank, n): products with them run along memory, which on CPUs is up to 20 times
faster than with columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import halves, philox4x32, stream_key
from gradwire.codecs.casts import CastHops
from gradwire.codecs.collectives import Collectives
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.options.reduced import Orthogonalization, PowerSGDOptions
from gradwire.codecs.step_memory import PREFIX as NORM
from gradwire.codecs.step_memory import LatestNorms, Memories, StepMemory, bounded
from gradwire.codecs.traits import About, Traits

RANK, START, ERROR = "rank/", "q/", "error/"
"""Begin the keys under which a parameter's own rank, its Qᵀ and its error are saved."""

LARGEST_ERROR = 1e5
"""Times the norm of a bucket's gradients: an error beyond it is what a spike has left.

A worker's error is far larger than what the result lacks. It holds all that the worker's gradients have
differed from the mean, of which the sum over the workers is zero, and grows with the root of the number of
steps: to 1e5 times a gradient in 1e10 steps. Adding so large an error rounds off 1 % of a gradient."""

DEPENDENT = 2.0**-30
"""Bound of noise in the rest of a row after projection, relative to it: float64 has 2⁻⁵² of it, and
differences between float32 rows are larger."""


@dataclass
class PowerSGD(PowerSGDOptions, Codec):
    """Parameters of two or more dimensions as matrices of low rank, the others in float32.

    A bucket takes two all-reduces: all P and the uncompressed parameters, then all Q. Agrees with torch's
    `powerSGD_hook` up to rounding. If a value of a matrix, or of a summed factor, is not finite on any
    worker, all of M̂ is NaN on every worker. Raises ValueError for settings outside their range.
    """

    traits = Traits(stateful=True, needs_matrices=True, worst_vnmse=0.9)
    about = About(
        group="low rank",
        source="PowerSGD, Algorithm 1",
        wire_bits="32 · `codec.rank` · (1/rows + 1/columns); 32 uncompressed",
        state="Q and the error of each matrix, ranks set for single ones",
        own_feedback=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # By parameter name, so that any other division into buckets finds them.
        self._ranks = SingleRanks()  # those that differ from `rank`
        self._starts = StepMemory[Tensor]()  # Qᵀ of the latest round, (rank, columns) float32
        self._errors = StepMemory[Tensor]()  # what the results lack of its gradients, (numel,) float32
        self._norms = LatestNorms()  # of this worker's gradients, bucket by bucket
        self._sent: dict[str, tuple[int, int]] = {}  # rank and coordinates of each parameter, as last sent
        self.memories = Memories(
            {RANK: self._ranks, START: self._starts, ERROR: self._errors, NORM: self._norms}
        )

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        method = cast(Orthogonalization, self.orthogonalization)
        parameters = list(self._parameters(this_round))
        compressed = [parameter for parameter in parameters if parameter.rank]
        self._sent |= {each.name: (each.rank, x[each.place].numel()) for each in parameters}
        given = self._with_errors(x, parameters)  # with what the results so far lack
        matrices = {p.name: given[p.name].view(p.rows, p.columns) for p in compressed}
        starts = {p.name: self._start(p, this_round) for p in compressed}

        # P = M Q, averaged; uncompressed parameters travel in the same message.
        given |= {name: projected(matrix, starts[name], method) for name, matrix in matrices.items()}
        means = await _means(given, this_round, comm)

        # Q = Mᵀ P, averaged. QR only gets finite values, because libraries differ in how they treat others.
        finite = {name: all_finite(means[name]) for name in matrices}
        lefts = {n: orthonormal(torch.where(finite[n], means[n], 0.0), method) for n in matrices}
        rights = await _means({n: lefts[n] @ matrix for n, matrix in matrices.items()}, this_round, comm)

        # M̂ = P Qᵀ.
        result = torch.empty_like(x)
        for parameter in parameters:
            name, place = parameter.name, parameter.place
            if not parameter.rank:
                result[place] = means[name]
                if self.feedback and name in self._errors:  # which has been sent in whole
                    self._keep_error(name, torch.zeros_like(means[name]), result[place])
                continue
            sound = finite[name] & all_finite(rights[name])
            left, right = (torch.where(sound, factor, torch.nan) for factor in (lefts[name], rights[name]))
            result[place] = (left.T @ right).view(-1)
            if self.feedback:
                self._keep_error(name, matrices[name].view(-1) - result[place], result[place])
            if self.warm_start:
                self._starts[name] = next_start(starts[name], rights[name], result[place])
        return result

    def activity(self) -> Mapping[str, float]:
        """The share of coordinates that are compressed, and the mean rank of these."""
        total = sum(numel for _, numel in self._sent.values())
        if not total:
            return {}
        compressed = sum(numel for rank, numel in self._sent.values() if rank)
        weighted = sum(rank * numel for rank, numel in self._sent.values())
        share = {"compressed": compressed / total}
        return share | ({"rank": weighted / compressed} if compressed else {})

    def _parameters(self, this_round: Round) -> Iterator[ParameterMatrix]:
        """The bucket's parameters in their order."""
        layout = this_round.layout
        for name, shape, place in zip(layout.names, layout.shapes, layout.places, strict=True):
            rank = effective_rank(shape, self._wanted_rank(name, this_round), self.min_compression_rate)
            yield ParameterMatrix(name, place, *matrix_shape(shape), rank)

    def _wanted_rank(self, name: str, this_round: Round) -> int:
        """The rank asked for a parameter, before limits by its shape; 0 for none."""
        return 0 if self._not_begun(this_round.step) else int(self._ranks.get(name, self.rank))

    def _not_begun(self, step: int) -> bool:
        """True if a step comes before `start_step`; warm-up steps, which are negative, do not count."""
        return 0 <= step < self.start_step

    def _with_errors(self, x: Tensor, parameters: Sequence[ParameterMatrix]) -> dict[str, Tensor]:
        """Each parameter's gradient, (numel,) float32, plus its residual."""
        values = {each.name: x[each.place].to(torch.float32, copy=True) for each in parameters}
        if self.feedback:
            norm = self._norms.median(parameters[0].name, x.float())
            for name, gradient in values.items():
                if name in self._errors:
                    gradient.add_(bounded(self._errors[name].to(x.device), norm, LARGEST_ERROR))
        return values

    def _start(self, parameter: ParameterMatrix, this_round: Round) -> Tensor:
        kept = self._starts.get(parameter.name)
        kept = None if kept is None else kept.to(this_round.layout.device)
        return resized(kept, parameter.rank, parameter.name, parameter.columns, this_round)

    def _keep_error(self, name: str, lost: Tensor, delivered: Tensor) -> None:
        """Store the residual `lost` of a compressed parameter; after a result that is not finite, keep the
        old one."""
        before = self._errors[name].to(lost.device) if name in self._errors else torch.zeros_like(lost)
        self._errors[name] = torch.where(all_finite(delivered), lost, before)

    def set_ranks(self, ranks: Mapping[str, int]) -> None:
        """Compress the named parameters to these ranks from the next round on; 0 sends them uncompressed.

        Other parameters keep their ranks. A larger rank extends the Q of the round before by random
        directions, a smaller one truncates it. The residual is kept; it is sent in full when the parameter
        goes uncompressed. Must be called between steps, with the same arguments on all ranks. Raises
        ValueError for a negative rank.
        """
        for name, rank in ranks.items():
            if rank < 0:
                raise ValueError(f"the rank of {name} cannot be {rank}: choose 0 (uncompressed) or more")
        self._ranks.update({name: torch.tensor(rank, device="cpu") for name, rank in ranks.items()})


class SingleRanks(StepMemory[Tensor]):
    """Ranks of single parameters, () int64. The user sets them, so a skipped step leaves them unchanged."""

    def __setitem__(self, name: str, rank: Tensor) -> None:
        self.data[name] = rank

    def load(self, values: Mapping[str, Tensor]) -> None:
        super().load({name: rank.cpu() for name, rank in values.items()})


async def _means(parts: Mapping[str, Tensor], this_round: Round, comm: Collectives) -> dict[str, Tensor]:
    """The means over the workers of float32 tensors of any shapes, in one all-reduce."""
    sizes = [part.numel() for part in parts.values()]
    if not sum(sizes):
        return dict(parts)
    together = torch.cat([part.reshape(-1) for part in parts.values()])
    mean = await comm.all_reduce(CastHops(together, this_round.size, comm.num_chunks, torch.float32))
    found = zip(parts.items(), torch.split(mean, sizes), strict=True)
    return {name: values.view(part.shape) for (name, part), values in found}


@dataclass(frozen=True)
class ParameterMatrix:
    """A parameter's place in the bucket, and the (rows, columns) of the matrix that it is treated as;
    uncompressed at rank 0."""

    name: str
    place: slice
    rows: int
    columns: int
    rank: int


def effective_rank(shape: Sequence[int], rank: int, min_compression_rate: float) -> int:
    """`rank`, limited by the matrix; 0 if the parameter is no matrix or its factors save too little.

    The rule is torch's: compress if rank · (rows + columns) · min_compression_rate < rows · columns.
    """
    if len(shape) < 2:
        return 0
    rows, columns = matrix_shape(shape)
    rank = min(rank, rows, columns)
    return rank if rank * (rows + columns) * min_compression_rate < rows * columns else 0


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """The shape of a parameter as a matrix: its first dimension by all others."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def all_finite(values: Tensor) -> Tensor:
    """True if all of `values` (at least one) are finite: a tensor without dimensions, computed in one
    pass."""
    low, high = torch.aminmax(values)
    return (low > -torch.inf) & (high < torch.inf)


def projected(matrix: Tensor, start: Tensor, method: Orthogonalization) -> Tensor:
    """Pᵀ = QᵀMᵀ, (rank, m), of M (m, n) and Qᵀ (rank, n), whose rows are made orthonormal; NaN all over if a
    value of M is not finite."""
    product = orthonormal(start, method) @ matrix.T
    # A zero in Q times NaN or infinity does not give NaN in every library.
    return torch.where(all_finite(matrix), product, torch.nan)


def random_directions(name: str, rows: range, columns: int, this_round: Round) -> Tensor:
    """The rows numbered `rows` of a random start for parameter `name`: (len(rows), columns) float32.

    Entries are nearly Gaussian: sums of eight uniform 16-bit integers, less their mean. They are odd
    multiples of 2⁻¹⁷, hence exact on every machine and never zero. They depend on the seed, the step, the
    parameter's name and the position alone, not on the bucket.
    """
    device = this_round.layout.device
    key = stream_key(this_round.seed, this_round.step, Layout.flat(columns, name).uid)
    column = torch.arange(columns, device=device)
    row = torch.arange(rows.start, rows.stop, device=device)[:, None]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    words = philox4x32((column, row, zero, zero), key)
    totals = halves(words).view(len(rows), columns, 8).sum(dim=-1)
    return (2 * totals - 8 * 0xFFFF + 1).float() * 2.0**-17


def resized(kept: Tensor | None, rank: int, name: str, columns: int, this_round: Round) -> Tensor:
    """`kept` (any rank, columns), or None if there is none yet, truncated or extended by random rows to
    `rank` rows.

    The first rows are the leading directions. Rows need not be orthonormal: the iteration begins by making
    them so, in their order.
    """
    if kept is None:
        return random_directions(name, range(rank), columns, this_round)
    if len(kept) >= rank:
        return kept[:rank]
    return torch.cat([kept, random_directions(name, range(len(kept), rank), columns, this_round)])


def next_start(start: Tensor, right: Tensor, delivered: Tensor) -> Tensor:
    """Qᵀ for the next round, from this round's start, its `right` factor Qᵀ, and the `delivered` result.

    A row of zeros, or one that is not finite, would find no direction any more, so the row of `start` that
    led to it stays.
    """
    useful = all_finite(delivered) & (right != 0).any(dim=1, keepdim=True)
    return torch.where(useful, right, start)


def orthonormal(rows: Tensor, method: Orthogonalization) -> Tensor:
    """(rank, length) float32 with rank ≤ length, finite, to orthonormal rows of the same shape.

    `auto` is torch's choice: Gram–Schmidt up to rank 2, QR above. All of them span the same space, so the
    approximation differs only in rounding.
    """
    if method == "gram_schmidt" or (method == "auto" and rows.shape[0] <= 2):
        return gram_schmidt(rows)
    return householder(rows)


def gram_schmidt(rows: Tensor) -> Tensor:
    """Modified Gram–Schmidt in float64; rows that depend on the earlier ones, and zeros, become zeros.

    In float32 the rounding noise left of a dependent row would be normalized to a vector that is not
    orthogonal to the others, and squares of 1e-30 would vanish.
    """
    result = rows.double()
    lengths = torch.linalg.vector_norm(result, dim=1)
    for index, row in enumerate(result):
        left = torch.linalg.vector_norm(row)
        row.copy_(torch.where(left > DEPENDENT * lengths[index], row / left, 0.0))
        later = result[index + 1 :]
        later -= (later @ row)[:, None] * row
    return result.float()


def householder(rows: Tensor) -> Tensor:
    """QR of the transposed rows; dependent rows are completed to an orthonormal set.

    Each row is scaled to a maximum of 1 first, so that norms do not overflow; the result is the same.
    """
    maxima = rows.abs().amax(dim=1, keepdim=True)
    scaled = torch.where(maxima > 0, rows / maxima, rows)
    columns: Tensor = torch.linalg.qr(scaled.T)[0]
    return columns.T.contiguous()

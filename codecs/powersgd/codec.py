"""PowerSGD: the workers' mean gradient as a product of two thin matrices (Vogels et al., NeurIPS 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

import torch
from torch import Tensor

from gradwire.codecs.exact import exact_hops
from gradwire.codecs.fields import between, check_fields, one_of
from gradwire.codecs.interface import Codec, Collectives, Layout, Round
from gradwire.codecs.powersgd.directions import resized
from gradwire.codecs.powersgd.exchange import Exchange, Uncompressed
from gradwire.codecs.powersgd.factors import PowerIteration, all_finite
from gradwire.codecs.powersgd.memory import Memory
from gradwire.codecs.powersgd.orthogonal import Orthogonalization
from gradwire.codecs.powersgd.parameters import Parameter, parameters_of
from gradwire.codecs.traits import About, Traits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class PowerSGD(Codec):
    """Parameters of two or more dimensions as matrices of low rank, the others in float32.

    A bucket takes two all-reduces: all P and the uncompressed parameters, then all Q. Agrees with torch's
    `powerSGD_hook` up to rounding. Raises ValueError for settings outside their range.
    """

    name: str = "powersgd"

    rank: int = between(1, 65_536, 4, hint="1 to 4 is usual, up to 128 in large language models")
    """Columns of the factors P and Q; `set_ranks` sets it for single parameters."""

    min_compression_rate: float = between(0, 1e6, 1.0, hint="1 compresses whatever gets smaller")
    """A matrix is compressed if rank · (rows + columns) · this < rows · columns; 0 compresses all."""

    start_step: int = between(0, 2**31, 0, hint="0 compresses from the first step on")
    """Steps before this one go uncompressed."""

    feedback: bool = True
    """Error feedback: what the result lacks of a worker's gradient is added to its next one.

    The result is the same on all workers, so a worker's error includes all that its gradients differ from the
    mean, and grows with it. Both factors are means: what counts is the mean error, which stays bounded."""

    warm_start: bool = True
    """Begin with the Q of the round before; otherwise with a random one in every round."""

    orthogonalization: str = one_of(*get_args(Orthogonalization), default="auto")
    """Of the factors: `gram_schmidt`, `qr`, or torch's choice between them by rank (`auto`)."""

    traits = Traits(stateful=True, needs_matrices=True)
    about = About(
        source="PowerSGD, Algorithm 1",
        wire_bits="32 · `codec.rank` · (1/rows + 1/columns); 32 uncompressed",
        state="Q and the error of each matrix, ranks set for single ones",
    )

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self), "codec")
        self._memory = Memory()

    def set_ranks(self, ranks: Mapping[str, int]) -> None:
        """Compress the named parameters to these ranks from the next round on; 0 sends them uncompressed.

        Others keep theirs. A larger rank extends the Q kept from the round before by random directions, a
        smaller one cuts it; the error is kept, and sent in whole once the parameter goes uncompressed. To be
        called alike on all ranks, between steps. Raises ValueError for a negative rank.
        """
        for name, rank in ranks.items():
            if rank < 0:
                raise ValueError(f"the rank of {name} cannot be {rank}: choose 0 (uncompressed) or more")
        self._memory.ranks |= {name: int(rank) for name, rank in ranks.items()}

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        if layout.dtype not in DTYPES:
            return f"codec=powersgd compresses float32, bfloat16 and float16 gradients, got {layout.dtype}"
        return None

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        parameters = list(
            parameters_of(this_round.layout, self._rank_at(this_round.step), self.min_compression_rate)
        )
        norm = self._memory.norms.median(this_round.layout.names[0], x.float()) if self.feedback else None
        exchanges = [self._exchange(parameter, x, this_round, norm) for parameter in parameters]
        firsts = await _means([exchange.first() for exchange in exchanges], this_round, comm)
        parts = [exchange.second(mean) for exchange, mean in zip(exchanges, firsts, strict=True)]
        seconds = await _means(parts, this_round, comm)
        result = torch.empty_like(x)
        for parameter, exchange, mean in zip(parameters, exchanges, seconds, strict=True):
            result[parameter.place] = exchange.result(mean)
            self._remember(parameter.name, exchange, result[parameter.place])
        return result

    def _rank_at(self, step: int) -> Callable[[str], int]:
        """The rank wanted for a parameter name; the steps of a warm-up, below 0, are compressed."""
        if 0 <= step < self.start_step:
            return lambda name: 0
        return lambda name: self._memory.ranks.get(name, self.rank)

    def _exchange(self, parameter: Parameter, x: Tensor, this_round: Round, norm: Tensor | None) -> Exchange:
        name = parameter.name
        values = x[parameter.place].to(torch.float32, copy=True)
        if norm is not None:
            self._memory.add_error(name, values, norm)
        if parameter.rank == 0:
            return Uncompressed(values)
        kept = self._memory.start(name, x.device)
        start = resized(kept, parameter.rank, name, parameter.columns, this_round)
        method = cast(Orthogonalization, self.orthogonalization)
        return PowerIteration(values.view(parameter.rows, parameter.columns), start, method)

    def _remember(self, name: str, exchange: Exchange, delivered: Tensor) -> None:
        """Keep what the next round needs; after a result that is not finite, what there was."""
        if isinstance(exchange, Uncompressed) and name not in self._memory.errors:
            return
        finite = all_finite(delivered)
        if self.feedback:
            self._memory.keep_error(name, exchange.lost(delivered), finite)
        if self.warm_start and isinstance(exchange, PowerIteration):
            self._memory.starts[name] = exchange.next_start(finite)

    def end_step(self, step: int) -> Mapping[str, float]:
        self._memory.end_step()
        return {}

    def skip_step(self, step: int) -> Mapping[str, float]:
        """Q and the errors stay as they were before the step."""
        self._memory.skip_step()
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return self._memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._memory.load_state_dict(state)


async def _means(parts: Sequence[Tensor], this_round: Round, comm: Collectives) -> list[Tensor]:
    """The means over the workers of float32 tensors of any shapes, in one all-reduce."""
    sizes = [part.numel() for part in parts]
    if not sum(sizes):
        return list(parts)
    together = torch.cat([part.reshape(-1) for part in parts])
    mean = await comm.all_reduce(exact_hops(together, this_round.size, comm.num_chunks, torch.float32))
    return [piece.view(part.shape) for piece, part in zip(torch.split(mean, sizes), parts, strict=True)]

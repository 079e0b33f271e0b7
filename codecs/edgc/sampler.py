"""Entropies of gradients from some of their coordinates: EDGC's data sampler (EDGC §IV-B).

This is the definition, in plain PyTorch, that compiled kernels reproduce. One of every 1/β consecutive
coordinates is drawn, uniformly in each such window. Every kind of layer and row thus gets its share, which
makes estimates more even than independent draws would; sampling whole blocks would not work, since neighbours
are alike.

A bin is the sign, the exponent and the first three bits of the mantissa of a float32. Bins are as fine for
small values as for large ones, so no range has to be known beforehand, and a gradient twice as large has the
same counts eight bins further on.

A density is estimated from a histogram over the leading bits of float32 (`definition`), as constant within
each bin. Bins grow with the values, so the estimate is right to 0.003 nat for normal, Laplace and Student's t
distributions of any scale, and for a gradient twice as large it is log 2 more.

Zeros have no density. They can be left out, or belong to the distribution whose variance is asked for: each
reading has a Gaussian of its own.

Three estimators share one interface. `bits` is accurate for any distribution and scale. `hist` is the usual
histogram of equal bins, scaled by the standard deviation: it is accurate if values spread over many bins,
which those of a real gradient often do not. `gaussian` is the entropy of a normal distribution of the same
standard deviation, which is what Theorem 2 needs and Lemma 2 states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import fold
from gradwire.codecs.arithmetic.random import Key, mix32, stream_key
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.reduced import ESTIMATORS, LARGEST_STRIDE

BIN_SHIFT = 20
"""The bin of a value is its float32 pattern without this many bits."""

BINS = 1 << (32 - BIN_SHIFT)

ZEROS = BINS
"""The counter of zeros of either sign."""

COUNTERS = BINS + 1

_MANTISSA_BITS = 23 - BIN_SHIFT

FINITE = 255 << _MANTISSA_BITS
"""The bins of one sign's finite values; the others have infinity and NaN."""


def stride_of(rate: float) -> int:
    """1/β as a whole number: one of this many consecutive coordinates is sampled.

    Raises ValueError for a rate outside (0, 1], or of less than one coordinate in 65,536.
    """
    if not 0 < rate <= 1 or round(1 / rate) > LARGEST_STRIDE:
        raise ValueError(
            f"a sampling rate of {rate} is out of range: choose one from {1 / LARGEST_STRIDE} to 1"
        )
    return round(1 / rate)


def sampling_key(seed: int) -> Key:
    """The key of the draws of one iteration, made from its seed."""
    return stream_key(seed, 0, 0)


def sampled_coordinates(windows: Tensor, numel: int, stride: int, key: Key) -> Tensor:
    """The coordinates drawn from `windows`, int64. Window w consists of `stride` of the `numel` coordinates,
    from w·stride on; the last one may be shorter. Same shape, int64."""
    first = windows * stride
    length = (numel - first).clamp(max=stride)
    hashes = mix32(mix32(windows ^ key[0]) + key[1] + (windows >> 32))
    return first + (hashes * length >> 32)


def sampled_histogram(x: Tensor, stride: int, seed: int) -> Tensor:
    """The histogram of one coordinate of every `stride` of `x`, (numel,) of a floating dtype: (4097,) int64.

    Entry b counts values whose float32 pattern begins with the 12 bits b, zeros aside; infinities and NaN are
    in the eight bins from 0x7F8 and those from 0xFF8 on. The last entry counts zeros. Draws depend on `seed`
    and the length alone.
    """
    counts = torch.zeros(COUNTERS, dtype=torch.int64, device=x.device)
    add_histogram(readable(x), stride, seed, counts)
    return counts


def add_histogram(x: Tensor, stride: int, seed: int, counts: Tensor) -> None:
    """Add the histogram of `x`, (numel,) float32 or bfloat16, to `counts`, (4097,) int64."""
    library = library_for(x.device)
    if library is not None:
        given = {**_sample(x, stride, seed), "counts": (counts, COUNTERS)}
        run(library, "sampled_histogram", x.device, **given)
        return
    windows, key = torch.arange(-(-x.numel() // stride), device=x.device), sampling_key(seed)
    bits = x[sampled_coordinates(windows, x.numel(), stride, key)].to(torch.float32).view(torch.int32)
    bins = ((bits >> BIN_SHIFT) & (BINS - 1)).masked_fill((bits & 0x7FFF_FFFF) == 0, ZEROS)
    counts += torch.bincount(bins, minlength=COUNTERS)


def lower_ends() -> Tensor:
    """The lower ends of the bins of finite positive values: float64 (2040,)."""
    return (torch.arange(FINITE, device="cpu") << BIN_SHIFT).to(torch.int32).view(torch.float32).double()


def log2_widths() -> Tensor:
    """The base-2 logarithm of the width of the bins of finite positive values: float64 (2040,)."""
    field = (torch.arange(FINITE, device="cpu") >> _MANTISSA_BITS).clamp(min=1)
    return (field - (127 + _MANTISSA_BITS)).double()


def finite_counts(counts: Tensor) -> Tensor:
    """The counts of finite non-zero values, from a histogram (4097,) int64 on any device: float64 (2, 2040)
    on the host, the positive values first, then the negative ones."""
    return counts[:BINS].cpu().view(2, -1)[:, :FINITE].double()


_PIECE = 1 << 22
"""Values squared at a time."""


def differential_entropy(counts: Tensor) -> float:
    """−Σ p·log(p/w) + (K − 1)/2N over the K occupied bins of width w; `counts` is a histogram, (4097,) int64.

    The last term corrects the bias of N samples (Miller and Madow). About the N finite values other than zero
    alone (see `zero_share`); −inf if there are none.
    """
    return entropy_and_zeros(counts)[0]


def entropy_and_zeros(counts: Tensor) -> tuple[float, float]:
    """`differential_entropy` and `zero_share` from one pass, since matrices may be many and small."""
    numbers, zeros = finite_counts(counts).flatten(), int(counts[ZEROS])
    total = float(numbers.sum())
    if not total:
        return -math.inf, 1.0
    entropy = math.log(total) + float(numbers @ _log_widths() - torch.xlogy(numbers, numbers).sum()) / total
    return entropy + (int(numbers.count_nonzero()) - 1) / (2 * total), zeros / (zeros + total)


def gaussian_entropy_with_zeros(counts: Tensor) -> float:
    """log σ + ½·log 2πe, where σ is the standard deviation of all finite values, zeros included, about their
    mean: the quantity of EDGC's Theorem 2. −inf if σ is 0.

    Values are assumed to spread evenly over their bins, which overestimates by up to 0.006 nat.
    """
    numbers = finite_counts(counts)
    if not numbers.any():
        return -math.inf
    middles, squares = _moments()
    total = float(numbers.sum()) + int(counts[ZEROS])
    mean = float((numbers[0] - numbers[1]) @ middles) / total
    square = float(numbers.sum(dim=0) @ squares) / total
    return 0.5 * math.log(2 * math.pi * math.e * (square - mean * mean))


def gaussian_entropy_without_zeros(x: Tensor) -> float:
    """log σ + ½·log 2πe, where σ² is the mean square of the values of `x`, any shape, other than zero: the
    Gaussian counterpart of `differential_entropy`. −inf if there are none."""
    alive = int(x.count_nonzero())
    energy = sum(float(piece.double().square().sum()) for piece in torch.split(x.flatten(), _PIECE))
    return math.log(2 * math.pi * math.e * energy / alive) / 2 if alive else -math.inf


@lru_cache(maxsize=1)
def _log_widths() -> Tensor:
    """The natural logarithm of the width of the bins of finite values: float64 (4080,)."""
    return (log2_widths() * math.log(2)).repeat(2)


@lru_cache(maxsize=1)
def _moments() -> tuple[Tensor, Tensor]:
    """The mean and the mean square of values spread evenly over a bin: two float64 (2040,)."""
    width = log2_widths().exp2()
    middle = lower_ends() + width / 2
    return middle, middle.square() + width.square() / 12


def zero_share(counts: Tensor) -> float:
    """The share of zeros among the finite values sampled; 1 if there are no values."""
    zeros, others = int(counts[ZEROS]), float(finite_counts(counts).sum())
    return zeros / (zeros + others) if others else 1.0


HIST_BINS = 256
"""Bins of `hist`, all equally wide."""

LIMIT = 8.0
"""They range from −8 to 8 standard deviations; what is beyond counts in the outermost ones."""

ENERGY_PIECE = 1 << 12
"""Values whose squares are added up first."""

_HIST_PIECE = 4 * ENERGY_PIECE
"""Values that the definition of `hist` works on at a time."""


@dataclass(frozen=True)
class Sample:
    """The entropy of a matrix [nats], −inf if there is nothing but zeros, and the share of exact zeros among
    the coordinates that were drawn. `bits` and `hist` exclude zeros from the entropy; `gaussian` includes
    them in σ."""

    nats: float
    zeros: float


def estimate(x: Tensor, method: str, stride: int, seed: int) -> float:
    """The differential entropy [nats] of `x`, any shape of a floating dtype, from one coordinate in every
    `stride`; −inf if all of them are zero.

    Draws depend on `seed` and the number of coordinates alone. Raises ValueError for a method that is none of
    `ESTIMATORS`.
    """
    return sample(x, method, stride, seed).nats


def sample(x: Tensor, method: str, stride: int, seed: int) -> Sample:
    """`estimate` with the share of zeros."""
    if method not in ESTIMATORS:
        raise ValueError(f"estimator={method!r} is unknown: choose one of {', '.join(ESTIMATORS)}")
    flat = x.detach().reshape(-1)
    if method == "hist":
        return _scaled_histogram(flat, stride, seed)
    counts = sampled_histogram(flat, stride, seed).cpu()  # once: each reading would wait for the device
    if method == "bits":
        return Sample(*entropy_and_zeros(counts))
    return Sample(gaussian_entropy_with_zeros(counts), zero_share(counts))


def _scaled_histogram(x: Tensor, stride: int, seed: int) -> Sample:
    """−Σ p·log(p/w) + (K − 1)/2N over the K occupied bins of width w = 16σ/256, for the N finite values other
    than zero; σ is their root mean square."""
    x = readable(x)
    energies, numbers = sampled_energies(x, stride, seed)
    drawn, total = numbers.tolist()
    if not total:
        return Sample(-math.inf, 1.0)
    rows = torch.nn.functional.pad(energies, (0, _next_power_of_two(len(energies)) - len(energies)))
    width = 2 * LIMIT * math.sqrt(float(fold(rows[None])) / total) / HIST_BINS
    used = equal_bins(x, stride, seed, width).cpu().double()
    nats = math.log(total) + math.log(width) - float(torch.xlogy(used, used).sum()) / total
    return Sample(nats + (int(used.count_nonzero()) - 1) / (2 * total), 1 - total / drawn)


def _next_power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def sampled_energies(x: Tensor, stride: int, seed: int) -> tuple[Tensor, Tensor]:
    """The energy of each 4096 of the coordinates of `x`, (numel,) float32 or bfloat16, that
    `sampled_histogram` counts: the sum of the squares of finite ones, float64 (pieces,), halves folded; and
    how many are finite and how many of these are not zero, int64 (2,)."""
    pieces = -(-x.numel() // (stride * ENERGY_PIECE))
    numbers = torch.zeros(2, dtype=torch.int64, device=x.device)
    library = library_for(x.device)
    if library is not None:
        energies = torch.empty(pieces, dtype=torch.float64, device=x.device)
        given = {**_sample(x, stride, seed), "energies": (energies, pieces), "numbers": (numbers, 2)}
        run(library, "sampled_energies", x.device, **given)
        return energies, numbers
    found = []
    for values in _drawn(x, stride, seed):
        finite = values.isfinite()
        numbers += torch.stack([finite.sum(), (finite & (values != 0)).sum()])
        squares = values.masked_fill(~finite, 0).square()
        rows = torch.nn.functional.pad(squares, (0, -len(squares) % ENERGY_PIECE))
        found.append(fold(rows.view(-1, ENERGY_PIECE)))
    return torch.cat([torch.empty(0, dtype=torch.float64, device=x.device), *found]), numbers


def equal_bins(x: Tensor, stride: int, seed: int, width: float) -> Tensor:
    """Count the coordinates of `x`, (numel,) float32 or bfloat16, that `sampled_histogram` counts, in 256
    bins of this width, from −128 widths on: int64 (256,). Zeros and values that are not finite are in none,
    values beyond the bins in the outermost ones."""
    counts = torch.zeros(HIST_BINS, dtype=torch.int64, device=x.device)
    library = library_for(x.device)
    if library is not None:
        given = {**_sample(x, stride, seed), "width": width, "counts": (counts, HIST_BINS)}
        run(library, "equal_bins_histogram", x.device, **given)
        return counts
    half = HIST_BINS // 2
    for values in _drawn(x, stride, seed):
        values = values[values.isfinite() & (values != 0)]
        bins = (values / width).floor_().clamp_(-half, half - 1).add_(half).long()
        counts += torch.bincount(bins, minlength=HIST_BINS)
    return counts


def _sample(x: Tensor, stride: int, seed: int) -> dict[str, Any]:
    """The fields of a kernel's struct that say what is sampled."""
    return {"x": (x, x.numel()), "numel": x.numel(), "stride": stride, "key": sampling_key(seed)}


def _drawn(x: Tensor, stride: int, seed: int) -> Iterator[Tensor]:
    """The coordinates of `x`, (numel,), that `sampled_histogram` counts, in float64 pieces."""
    key = sampling_key(seed)
    for first in range(0, x.numel(), _HIST_PIECE * stride):
        if stride == 1:
            yield x[first : first + _HIST_PIECE].double()
            continue
        last = min(first + _HIST_PIECE * stride, x.numel())
        windows = torch.arange(first // stride, -(-last // stride), device=x.device)
        yield x[sampled_coordinates(windows, x.numel(), stride, key)].double()

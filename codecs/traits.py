"""Declared properties of codecs, for use by other code, and the words that describe codecs in tables."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_MAGNITUDE = 2.0**116
"""The root mean square of gradients up to which the relative error is the same. Beyond it what a codec adds
or multiplies may overflow float32: the mean then has values that are not finite, and steps can be skipped."""

SCALED_FROM = 2.0**-96
"""`Traits.smallest_magnitude` of codecs that take a group of coordinates with a scale below 2⁻¹⁰⁰ for zeros,
so that normalizers and what undoes them are normal float32 numbers in every implementation. Of gradients of
this magnitude such groups hold less than 1/256 of the energy."""


@dataclass(frozen=True)
class Traits:
    """Facts about a codec with its settings. A codec whose settings change them sets `self.traits` in its
    constructor.

    The first group holds capabilities that a codec may claim; the second holds rules that apply to every
    codec unless it declares an exception. Tests check both for every codec, and reject exceptions that are
    not needed.
    """

    unbiased: bool = False
    """The mean over all random draws is the exact mean."""
    stateful: bool = False
    """It remembers something from step to step, which `state_dict` gives."""
    uses_backend: bool = False
    """It runs the backend's own collectives, which match by their order: it needs real processes, its buckets
    follow one another, and its messages can be neither paced nor cut nor counted."""
    clock_driven: bool = False
    """Its decisions follow from observations of a clock: two runs are the same only where one follows the
    other's decisions."""
    needs_matrices: bool = False
    """It compresses nothing of an anonymous vector: parameters must be matrices to it."""

    keeps_zeros: bool = True
    """A bucket of zeros on all ranks gives zeros."""
    follows_magnitude: bool = True
    """The relative error is the same for gradients of any magnitude, from `smallest_magnitude` to
    `LARGEST_MAGNITUDE`."""
    smallest_magnitude: float = 2.0**-124
    """The root mean square of gradients from which on the relative error is the same. Smaller ones may become
    zeros; those of float32 that are subnormal lose bits with any codec."""
    shows_nonfinite: bool = True
    """If a coordinate of any rank is NaN or infinite, so is one of the mean: the step can be skipped."""
    worst_vnmse: float = 0.95
    """Bound of the vNMSE of one round on gradients like those of the tests: less than 1, which a mean
    of zeros has. Infinite for a result that is no estimate of the mean."""
    large_error: str = ""
    """The reason for a `worst_vnmse` of 1 or more."""


GROUPS = (
    *("uncompressed", "quantized all-reduce", "floating-point formats", "sign and ternary", "sparsifiers"),
    *("low rank", "adaptive broadcast"),
)
"""The groups in which pages list codecs, in their order."""


@dataclass(frozen=True)
class About:
    """A codec's words in the tables; all other columns come from the codec itself."""

    source: str = ""
    """Its source: "DynamiQ §3"."""
    wire_bits: str = ""
    """Bits on the wire per coordinate, all metadata included, as settings determine them."""
    metadata: str = "none"
    """Metadata that is reduced before the gradients are."""
    state: str = "none"
    """State that lasts from step to step."""
    own_feedback: bool = False
    """True if it feeds its errors back by itself, without `codec.ef`."""
    unbiased_if: str = ""
    """The setting that makes it unbiased where it is not by default: "codec.rounding=independent"."""
    group: str = ""
    """One of `GROUPS`, for a codec of this package."""

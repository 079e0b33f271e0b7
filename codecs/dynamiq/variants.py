"""DynamiQ with other defaults: `dynamiq_plus`, and `uniform`, which has everything off."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs.dynamiq.codec import DynamiQ
from gradwire.codecs.options.dynamiq import (
    DynamiQPlusOptions,
    UniformOptions,
)
from gradwire.codecs.traits import About


@dataclass
class DynamiQPlus(DynamiQPlusOptions, DynamiQ):
    """DynamiQ with better defaults: the same bits on the wire, a fraction of the error. Unbiased with
    `rounding="independent"`.

    What is different are defaults of DynamiQ's switches, each of which can be set back to the paper's:

        widths           more of them to choose from: bits go where they are worth most
        errors           measured ones decide that, not 4^−w: from 2 to 3 bits the error falls to an eighth
        values           distinct: no code is spent on a second zero
        codebooks        four, of which each super-group takes what fits it best
        group            32: half the scales are not worth what they cost
        scale_rounding   up: at 8 bits and above, random scales would be most of the error
        mean             not subtracted: that gains less than sending the means costs

    Each was measured to lower the vNMSE on most gradients of a GPT-2, a Llama and a BERT in training (0.1 to
    0.4 million parameters, rings and butterflies of 4 to 16 workers). So does a width of 1 bit, at 3 bits by
    up to three quarters; but it leaves some super-groups with many times more error than energy, so it is not
    the default.
    """

    about = About(
        group="quantized all-reduce",
        source="DynamiQ, improved",
        wire_bits="`codec.bits`",
        metadata="norm of super-groups of 256",
        unbiased_if="codec.rounding=independent",
    )


@dataclass
class UniformQuantization(UniformOptions, DynamiQ):
    """Equidistant values of a fixed bit width in groups of 32 with a bf16 scale, rounded independently and
    re-quantized at every hop; no metadata.

    The rows of DynamiQ's Table 6 that follow are `values=nonuniform`; then `widths=[2,4,8]` with `bits`; then
    `scales=hierarchical group=16`; then `rounding=correlated`.
    """

    about = About(
        group="quantized all-reduce",
        source="DynamiQ §6.2, Table 6 (first row)",
        wire_bits="`codec.widths` + 16 / `codec.group` = 4.5",
    )

"""Options of the codecs that send fewer numbers than coordinates: some of the coordinates, or matrices of low
rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gradwire.codecs.fields import above, at_least, between, one_of
from gradwire.codecs.options.common import codec_at

WireType = Literal["fp32", "bf16"]

WIRE_BITS = 16
"""Bits of a coordinate that OmniReduce sends."""


Orthogonalization = Literal["auto", "gram_schmidt", "qr"]
Backward = Literal["but_epilogue", "all", "epilogue", "none"]

ESTIMATORS = ("bits", "hist", "gaussian")
Alignment = Literal["aligned", "shared", "own"]
Reference = Literal["activation", "first"]

LARGEST_STRIDE = 1 << 16
"""The most consecutive coordinates of which one is sampled."""


@codec_at("omnireduce:OmniReduce")
@dataclass
class OmniReduceOptions:
    """Options of `OmniReduce`."""

    name: str = "omnireduce"

    bits: float = between(0.01, WIRE_BITS, 8.0, hint="8 sends half of the blocks, 16 all")
    """Bits of bfloat16 values on the wire per coordinate, in the mean over rounds; the mask adds
    1/`block`."""

    block: int = between(1, 1 << 20, 256, hint="256 as in the paper")
    """Coordinates of a block (the paper's chunk)."""

    gamma: float = between(0, 1, 0.8, hint="0.8 as in the paper; 1 leaves k as it is")
    """The share of k that a round leaves as it is."""


@codec_at("topk:TopK")
@dataclass
class TopKOptions:
    """Options of `TopK`."""

    name: str = "topk"

    fraction: float = between(1e-6, 1, 0.01, hint="0.01 sends one coordinate of a hundred")
    """The share of a bucket's coordinates that each worker sends, rounded to a whole number of them."""

    values: str = one_of(*get_args(WireType))
    """Type of values on the wire: `fp32` or `bf16`."""


@codec_at("randomk:RandomK")
@dataclass
class RandomKOptions:
    """Options of `RandomK`."""

    name: str = "randomk"

    fraction: float = between(1e-6, 1, 0.01, hint="0.01 sends one coordinate of a hundred")
    """The share of a bucket's coordinates that are sent, rounded to a whole number of them."""

    values: str = one_of(*get_args(WireType))
    """Type of values on the wire: `fp32` or `bf16`, which is rounded to nearest at every hop."""

    unbiased_scaling: bool = False
    """Multiply by coordinates per coordinate sent: right on average. Error feedback wants it `false`."""


@codec_at("powersgd:PowerSGD")
@dataclass
class PowerSGDOptions:
    """Options of `PowerSGD`."""

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
    """Method that makes factors orthonormal: `gram_schmidt`, `qr`, or torch's choice by rank (`auto`)."""


@codec_at("edgc.codec:EDGC")
@dataclass
class EDGCOptions:
    """Options of `EDGC`."""

    name: str = "edgc"

    alpha: float = between(1e-6, 1, 0.1, hint="0.1 is the paper's")
    """ISR: the share of the steps in which entropies are sampled."""

    beta: float = between(1 / LARGEST_STRIDE, 1, 0.25, hint="0.25 is the paper's")
    """GSR: the share of a gradient's coordinates that are sampled."""

    estimator: str = one_of(*ESTIMATORS)
    """Estimator of an entropy: bins of float32 `bits`, a `hist` of 256 bins by σ, or `gaussian` of σ."""

    window: int = at_least(1, 1000, 2**31)
    """Steps between two changes of ranks."""

    step_limit: int = at_least(1, 8, 65_536)
    """By how much a rank changes at most; the paper's own value is lost."""

    max_rank: int | None = between(1, 65_536, None)
    """The largest rank; null: the largest one that saves time, as probes say."""

    min_rank: int | None = between(1, 65_536, None)
    """The smallest rank; null: a quarter of the largest."""

    warm_up_share: float = between(0, 1, 0.1, hint="0.1 is the paper's")
    """The share of `steps` that goes uncompressed at least."""

    steps: int | None = between(1, 2**31, None)
    """Steps of the whole run, set automatically in training; null: `warm_up_share` has no effect."""

    reference: str = one_of(*get_args(Reference))
    """The error that is kept: that of the largest rank as compression begins (`activation`), or in the
    `first` window."""

    alignment: str = one_of(*get_args(Alignment))
    """Ranks of a pipeline's stages: all have the first one's rank and those after it as many more as
    they have time for (`aligned`), all the same (`shared`), or each its `own`."""

    stage_offset: float | None = between(0, 65_536, None)
    """By how much the rank of a stage exceeds that of the one before it with `aligned`; null: as measured."""

    stages: int = at_least(1, 1, 1024)
    """Stages of the pipeline, set automatically in training."""

    min_compression_rate: float = above(0, 1.0, 1e6, hint="1 compresses whatever gets smaller")
    """A matrix is compressed if rank · (rows + columns) · this < rows · columns."""

    orthogonalization: str = one_of(*get_args(Orthogonalization), default="auto")
    """Method that makes factors orthonormal: `gram_schmidt`, `qr`, or torch's choice by rank (`auto`)."""


@codec_at("optimus_cc:OptimusCC")
@dataclass
class OptimusCCOptions(PowerSGDOptions):
    """Options of `OptimusCC`."""

    name: str = "optimus_cc"

    stages: int | None = at_least(1, None, 1024, hint="null: three quarters of them, rounded down")
    """Number of the first stages that compress their gradients; null: three quarters, rounded down, at
    least one."""

    backward: str = one_of(*get_args(Backward))
    """Gradients of hidden states that are compressed: `but_epilogue` all but those that the stage before
    awaits once its forward passes are done, `epilogue` those alone, `all`, or `none`. Idle without a
    pipeline."""

    backward_rank: int = between(1, 65_536, 4, hint="the authors take 16 for hidden sizes of 1920 and 3072")
    """Columns of the factors of a gradient of hidden states. Idle with `backward=none`."""

    lazy_errors: bool = True
    """Lazy error propagation: what a gradient of hidden states lacks is added to the next micro-batch's. Idle
    with `backward=none`."""

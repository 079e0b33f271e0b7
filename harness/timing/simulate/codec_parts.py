"""What the parts of a codec's work are made of: from the labels in a trace to operations of the benchmark.

Buckets are float32. What a codec does in plain tensor arithmetic counts by the bytes that it reads and
writes: to add a float32 message to partial sums is 4 + 4 + 4. Settings that the benchmark does not have are
taken for the nearest that it has; Python, launches and fresh memory cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradwire.codecs.dynamiq import DynamiQ
from gradwire.codecs.exclude import Exclude
from gradwire.codecs.feedback import ErrorFeedback
from gradwire.codecs.interface import Codec
from gradwire.codecs.mxfp import MXFP
from gradwire.codecs.mxfp.formats import FORMATS
from gradwire.codecs.omnireduce import OmniReduce
from gradwire.codecs.onebit import OneBit
from gradwire.codecs.qsgd import QSGD
from gradwire.codecs.terngrad import TernGrad
from gradwire.codecs.tfp import TFP
from gradwire.codecs.tfp.scales import WIDEST_SCALED
from gradwire.codecs.thc import THC
from gradwire.harness.timing.simulate.cost import NOTHING, Cost, moved, once

Parts = Mapping[str, Cost]
"""label of a part (`harness.trace.step`) → its cost per coordinate of the part"""

COPY = moved(8)
"""float32 to float32, or a division in place."""

NORM, SUM, MAXIMUM, UNION = 120.0, 40.0, 16.0, 10.0
"""Bytes that a hop of the metadata moves for each number: bf16 by way of float64 or float32, bf16 bit
patterns, bytes of a mask; temporaries and the message included."""

SORTED = 3500.0
"""Bytes that could be copied in the time it takes to sort a block's energy among 15,000: seen on a CPU."""

MEASURED = "or network.codec_times=measured"


def parts_of(codec: Codec, workers: int) -> Parts:
    """The costs of all parts of this codec's work among so many workers.

    ValueError for codecs that the benchmark does not cover, and for wrappers around one.
    """
    if isinstance(codec, Exclude | ErrorFeedback):
        option = "codec.exclude" if isinstance(codec, Exclude) else "codec.ef=true"
        raise ValueError(f"{option} is in no table of operations; leave it out, {MEASURED}")
    if codec.name not in TABLES:
        known = ", ".join(TABLES)
        raise ValueError(f"codec={codec.name} has no table of operations; choose one of {known}, {MEASURED}")
    # Hashes that a run compares to be safe are the only thing prepared.
    return {"prepare": NOTHING, **TABLES[codec.name](codec, workers)}


def _hops(
    workers: int,
    encode: Cost,
    accumulate: Cost,
    decode: Cost,
    accumulate_encode: Cost | None = None,
    seal: Cost | None = None,
) -> dict[str, Cost]:
    """The hops of `gradwire.codecs.interface.Hops`: what is not given is put together as there."""
    return {
        "encode": encode,
        "accumulate": accumulate,
        "accumulate_encode": accumulate_encode or accumulate + encode,
        "seal": seal or accumulate + encode,
        "decode": decode,
        "collect": decode + accumulate * (workers - 1),
    }


def _sums(workers: int, encode: Cost, accumulate: Cost, decode: Cost, accumulate_encode: Cost) -> Parts:
    """Of `SumHops`, which begin with a copy and end with a division."""
    seal = accumulate_encode + decode
    hops = _hops(workers, encode, accumulate, decode, accumulate_encode, seal)
    return {"plan": COPY, **hops, "finish": COPY}


def _exact(wire: int) -> Callable[[Codec, int], Parts]:
    """Sums that travel in `wire` bytes a coordinate; a hop adds to a temporary, which it casts. PyTorch casts
    a message of another dtype to a temporary, too, if it is added on a CPU."""

    def parts(codec: Codec, workers: int) -> Parts:
        cast = moved(4 + wire)
        add = moved(4 + wire + 4)
        if wire != 4:
            add = moved(add.num_bytes, on_cpu=add.num_bytes + 4 + 4)
        return _sums(workers, cast, add, cast, add + cast)

    return parts


def _coded(workers: int, encoding: str, decoding: str) -> Parts:
    """Of a `GroupCoder` whose operations are "<family>.<operation>.<label>", for both ways."""

    def operation(template: str, name: str) -> Cost:
        family, label = template.split(".", 1)
        return once(f"{family}.{name}.{label}")

    return _sums(
        workers,
        operation(encoding, "encode"),
        operation(decoding, "add"),
        operation(decoding, "decode"),
        operation(encoding, "add_encode"),
    )


def _nearest(measured: Sequence[int], bits: float) -> int:
    return min(measured, key=lambda each: abs(each - bits))


def _dynamiq(codec: DynamiQ, workers: int) -> Parts:
    """A single width as it is, several as the benchmark's mixture of them. What is collected in a broadcast
    becomes means in the end; otherwise decoding has made them."""
    family, widths = ("dynamiq_plus", (4, 8)) if codec.codebooks > 1 else ("dynamiq", (2, 3, 4, 5, 6, 8))
    label = "mix" if len(codec.widths) > 1 else f"{_nearest(widths, codec.widths[0])}"
    compress, recompress, accumulate, decompress = (
        once(f"{family}.{name}.{label}") for name in ("compress", "recompress", "accumulate", "decompress")
    )
    seal = accumulate + compress + decompress
    return {
        "statistics": once("dynamiq.statistics"),
        "metadata": moved((SUM * codec.mean + NORM * (len(codec.widths) > 1)) / 256),
        "plan": once("dynamiq.reduced", "dynamiq.allocation", "dynamiq.order"),
        **_hops(workers, compress, accumulate, decompress, recompress, seal),
        "collect": accumulate * workers + COPY,
        "finish": NOTHING,
    }


def _mxfp(codec: MXFP, workers: int) -> Parts:
    bits = FORMATS[codec.name].width
    quantize, add, copy, dequantize = (
        once(f"mxfp.{name}.{bits}") for name in ("quantize", "add", "copy", "dequantize")
    )
    return {
        "statistics": once("mxfp.maxima"),
        "metadata": moved(MAXIMUM / 32),
        "plan": quantize,
        **_hops(workers, copy, add, copy),
        "finish": dequantize,
    }


def _thc(codec: THC, workers: int) -> Parts:
    """A rotation reaches beyond the cache or it does not."""
    rotated = "1024" if 0 < codec.block <= 1 << 14 else "largest"
    bits = _nearest((1, 3, 4, 8, 12), codec.sum_bits(workers))
    pack, add, unpack = (once(f"bitpack.{name}.{bits}") for name in ("pack", "add", "unpack"))
    return {
        "statistics": once(f"thc.root_mean_squares.{rotated}"),
        "metadata": NOTHING if rotated == "largest" else moved(2 * MAXIMUM / codec.block),
        "plan": once(f"thc.quantize.{rotated}"),
        **_hops(workers, pack, add, unpack + COPY),
        "finish": once(f"thc.dequantize.{rotated}"),
    }


def _omnireduce(codec: OmniReduce, workers: int) -> Parts:
    """Of all blocks the energies, which are sorted; of those in the union, as large as it is to be, bfloat16
    sums, before which they are gathered and after which they are put back among zeros."""
    share, sums = codec.bits / 16, _exact(2)(codec, workers)
    parts = {label: cost * share for label, cost in sums.items()}
    return {
        **parts,
        "statistics": once("omnireduce.energies.256") + moved(SORTED / codec.block),
        "metadata": moved(UNION / 8 / codec.block),
        "plan": parts["plan"] + (COPY + COPY) * share,
        "finish": parts["finish"] + COPY * share + moved(4),
    }


def _qsgd(codec: QSGD, workers: int) -> Parts:
    """An l2 norm costs more than any number of bits does, and the receiver nothing."""
    label = f"{_nearest((2, 4, 8), codec.bits)}"
    return _coded(workers, "levels.4.l2" if codec.norm == "l2" else f"levels.{label}", f"levels.{label}")


def _terngrad(codec: TernGrad, workers: int) -> Parts:
    return _coded(workers, "levels.2", "levels.2")


def _onebit(codec: OneBit, workers: int) -> Parts:
    return _coded(workers, "signs.1", "signs.1")


def _tfp(codec: TFP, workers: int) -> Parts:
    scaled = codec.bits <= {"block": 6, "all": WIDEST_SCALED, "none": 0}[codec.scale]
    bits = _nearest((4, 6) if scaled else (8, 12), codec.bits)
    label = f"tfp.{bits}.{'scaled' if scaled else 'plain'}"
    return _coded(workers, label, label)


TABLES: Mapping[str, Callable[[Any, int], Parts]] = {
    "fp32": _exact(4),
    "bf16": _exact(2),
    "dynamiq": _dynamiq,
    "dynamiq_plus": _dynamiq,
    "uniform": _dynamiq,
    **dict.fromkeys(FORMATS, _mxfp),
    "thc": _thc,
    "omnireduce": _omnireduce,
    "qsgd": _qsgd,
    "tfp": _tfp,
    "terngrad": _terngrad,
    "onebit": _onebit,
}
"""codec → the costs of its parts among so many workers."""

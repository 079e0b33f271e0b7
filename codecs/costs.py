"""Costs of a codec's steps per coordinate, in operations that `task=bench` measures.

A codec's `costs()` returns them, for each label of its work in a trace:

statistics, metadata       what `statistics()` does, and a hop of its reduction
    plan                       `plan()`, or what is done before the first message
    encode, accumulate, accumulate_encode, seal, decode, collect    the hops of `collectives.Hops`
    finish                     from the sums to the mean

Buckets are float32. What a codec does in plain tensor arithmetic counts by the bytes that it reads and
writes: adding a float32 message to partial sums is 4 + 4 + 4. A setting that was not benchmarked is replaced
by the nearest one that was; Python, launches and fresh memory cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cost:
    """The cost of a step: how often each operation of `task=bench` runs per coordinate, and the bytes
    per coordinate that plain tensor arithmetic reads and writes, which take as long as in a copy. On a CPU
    the number of bytes may be larger."""

    operations: Mapping[str, float] = field(default_factory=dict)
    num_bytes: float = 0.0
    cpu_bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        names = {**self.operations, **other.operations}
        counts = {name: self.operations.get(name, 0) + other.operations.get(name, 0) for name in names}
        return Cost(counts, self.num_bytes + other.num_bytes, self.cpu_bytes + other.cpu_bytes)

    def __mul__(self, factor: float) -> Cost:
        counts = {name: factor * count for name, count in self.operations.items()}
        return Cost(counts, factor * self.num_bytes, factor * self.cpu_bytes)


Costs = Mapping[str, Cost]
"""Label of a step to its cost per coordinate that the step works on."""


def once(*operations: str) -> Cost:
    """The cost of running each of these distinct operations once per coordinate."""
    return Cost(dict.fromkeys(operations, 1.0))


def moved(num_bytes: float, on_cpu: float | None = None) -> Cost:
    """The cost of reading and writing `num_bytes` per coordinate, or `on_cpu` on a CPU."""
    return Cost(num_bytes=num_bytes, cpu_bytes=num_bytes if on_cpu is None else on_cpu)


NOTHING = Cost()

COPY = moved(8)
"""float32 to float32, or a division in place."""

NORM, SUM, MAXIMUM, UNION = 120.0, 40.0, 16.0, 10.0
"""Bytes that a hop of the metadata moves for each number: bf16 by way of float64 or float32, bf16 bit
patterns, bytes of a mask; temporaries and the message included."""


def hop_costs(
    workers: int,
    encode: Cost,
    accumulate: Cost,
    decode: Cost,
    accumulate_encode: Cost | None = None,
    seal: Cost | None = None,
) -> dict[str, Cost]:
    """Costs of the hops of `collectives.Hops`; hops that are not given are composed of the others as in that
    class."""
    return {
        "encode": encode,
        "accumulate": accumulate,
        "accumulate_encode": accumulate_encode or accumulate + encode,
        "seal": seal or accumulate + encode,
        "decode": decode,
        "collect": decode + accumulate * (workers - 1),
    }


def sum_costs(
    workers: int, encode: Cost, accumulate: Cost, decode: Cost, accumulate_encode: Cost
) -> dict[str, Cost]:
    """Costs of `sums.SumHops`, which begin with a copy and end with a division."""
    seal = accumulate_encode + decode
    hops = hop_costs(workers, encode, accumulate, decode, accumulate_encode, seal)
    return {"plan": COPY, **hops, "finish": COPY}


def exact_costs(workers: int, wire: int) -> dict[str, Cost]:
    """Costs of sums that travel in `wire` bytes per coordinate.

    Each hop is one pass over memory; there is no work before the first and after the last. Messages collected
    from all ranks are added in float32. Float32 messages of means arrive in place, and the sink writes them
    directly.
    """
    cast, add = moved(4 + wire), moved(4 + wire + 4)
    decode, seal = (NOTHING, add) if wire == 4 else (cast, moved(4 + 2 * wire + 4))
    hops = hop_costs(workers, cast, add, decode, moved(4 + 2 * wire), seal)
    return {"plan": NOTHING, **hops, "collect": moved(2 * wire + 4) + add * (workers - 2), "finish": NOTHING}


def coder_costs(workers: int, encoding: str, decoding: str | None = None) -> dict[str, Cost]:
    """Costs of a `groups.GroupCoder` whose operations are named "<family>.<operation>.<label>". `encoding`
    and `decoding` (by default the same) are "<family>.<label>"."""

    def operation(template: str, name: str) -> Cost:
        family, label = template.split(".", 1)
        return once(f"{family}.{name}.{label}")

    decoding = encoding if decoding is None else decoding
    return sum_costs(
        workers,
        operation(encoding, "encode"),
        operation(decoding, "add"),
        operation(decoding, "decode"),
        operation(encoding, "add_encode"),
    )


def nearest(measured: Sequence[int], bits: float) -> int:
    """The benchmarked number of bits that is nearest to `bits`."""
    return min(measured, key=lambda each: abs(each - bits))

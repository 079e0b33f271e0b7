"""DynamiQ's metadata, a mean and a norm for every super-group: written to a message, combined, and read from
it.

A message holds half of the metadata, four chunks of eight, as in the first hop of a butterfly among eight
workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.format import num_super_groups
from gradwire.harness.comm.collective.metadata import MetadataHops
from gradwire.harness.studies.bench.operation import Case, Operation

CHUNKS, IN_MESSAGE = 8, range(4)


def operations() -> Iterator[Operation]:
    for name in ("put", "combine", "take"):
        yield Operation(f"metadata.{name}", ("metadata_hop",), partial(_case, name), dtypes=("float32",))


def _case(name: str, x: Tensor) -> Case:
    generator = torch.Generator().manual_seed(0)
    mean, norm = (
        torch.rand(num_super_groups(x.numel()), generator=generator).to(x.device, torch.bfloat16)
        for _ in range(2)
    )
    hops = MetadataHops([(mean, "sum"), (norm, "norm")], CHUNKS)
    num_bytes = hops.message_bytes(IN_MESSAGE, 1)
    message = torch.zeros(num_bytes, dtype=torch.uint8, device=x.device)
    own = torch.empty_like(message)  # as many bytes as the message has
    if name == "put":
        return Case(lambda: hops.encode(IN_MESSAGE, message, 1), (own,), (message,))
    if name == "combine":
        return Case(lambda: hops.accumulate(message, IN_MESSAGE, 1), (own, message), (own,))
    return Case(lambda: hops.decode(message, IN_MESSAGE, 1), (message,), (own,))

"""gradwire: compressed gradient synchronization for distributed training.

The library's public interface. `attach` gives a DistributedDataParallel model a codec in one line; a codec of
your own implements the types. Everything else is in `gradwire.codecs` and `gradwire.harness`.
"""

from __future__ import annotations

from gradwire.codecs.hop_codec import HopCodec
from gradwire.codecs.interface import Codec, Collectives, Hops, Layout, Round
from gradwire.codecs.registry import codec_classes, make_codec, register_codec
from gradwire.codecs.traits import About, Traits
from gradwire.harness.library.attach import attach
from gradwire.harness.library.failures import SynchronizationError
from gradwire.harness.library.shard_hooks import shard_hooks
from gradwire.harness.library.shard_synchronizer import ShardSynchronizer
from gradwire.harness.library.synchronizer import Synchronizer

__version__ = "0.1.0"

__all__ = [
    "About",
    "Codec",
    "Collectives",
    "HopCodec",
    "Hops",
    "Layout",
    "Round",
    "Traits",
    "ShardSynchronizer",
    "SynchronizationError",
    "Synchronizer",
    "attach",
    "codec_classes",
    "make_codec",
    "register_codec",
    "shard_hooks",
]

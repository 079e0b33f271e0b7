"""gradwire: compressed gradient synchronization for distributed training.

The library's public interface. `attach` gives a DistributedDataParallel model a codec in one line; a codec of
your own implements the types. Everything else is in `gradwire.codecs` and `gradwire.harness`.

What is named here is imported when it is used: the command `gradwire` helps and refuses without PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.codecs.collectives import Collectives, Hops
    from gradwire.codecs.hop_codec import HopCodec
    from gradwire.codecs.interface import Codec, Layout, Round
    from gradwire.codecs.registry import codec_classes, make_codec, register_codec
    from gradwire.codecs.traits import About, Traits
    from gradwire.harness.library.attach import attach
    from gradwire.harness.library.failures import SynchronizationError
    from gradwire.harness.library.shard_hooks import shard_hooks
    from gradwire.harness.library.shard_synchronizer import ShardSynchronizer
    from gradwire.harness.library.synchronizer import Synchronizer
    from gradwire.harness.report.frame import load_results, load_settings

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
    "load_results",
    "load_settings",
    "make_codec",
    "register_codec",
    "shard_hooks",
]

_MODULES = {
    "codecs.collectives": ("Collectives", "Hops"),
    "codecs.hop_codec": ("HopCodec",),
    "codecs.interface": ("Codec", "Layout", "Round"),
    "codecs.registry": ("codec_classes", "make_codec", "register_codec"),
    "codecs.traits": ("About", "Traits"),
    "harness.library.attach": ("attach",),
    "harness.library.failures": ("SynchronizationError",),
    "harness.library.shard_hooks": ("shard_hooks",),
    "harness.library.shard_synchronizer": ("ShardSynchronizer",),
    "harness.library.synchronizer": ("Synchronizer",),
    "harness.report.frame": ("load_results", "load_settings"),
}
"""The module of each lazily imported name, as above for type checkers."""

_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """One of the public names, imported now and kept."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

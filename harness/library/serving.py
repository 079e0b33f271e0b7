"""Which codec instances serve a model: state is keyed by names, which two models would mix up."""

from __future__ import annotations

import weakref
from typing import Protocol

from gradwire.codecs.interface import Codec
from gradwire.codecs.wrappers.wrapper import innermost
from gradwire.harness.comm.world.process import ProcessWorld


class Hook(Protocol):
    """What hands a model's gradients to a codec, until its world is closed."""

    codec: Codec
    world: ProcessWorld


_serving: weakref.WeakValueDictionary[int, Hook] = weakref.WeakValueDictionary()
"""The active hooks, by their codecs' ids."""


def serve(codec: Codec, hook: Hook) -> None:
    """Remembers as long as `hook` lives that the codec serves its model."""
    _serving[id(innermost(codec))] = hook


def check_unused(codec: Codec, what: str) -> None:
    """Refuses a codec that serves another model. Raises ValueError, which begins with `what`."""
    bare = innermost(codec)
    hook = _serving.get(id(bare))
    if hook is not None and innermost(hook.codec) is bare and not hook.world.closed:
        raise ValueError(f"{what}: this codec instance serves another model; make one for each")

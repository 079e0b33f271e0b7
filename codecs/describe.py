"""Settings of a codec as text: compared between ranks, and saved with its state."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec
from gradwire.codecs.registry import codec_class, codec_names
from gradwire.codecs.wrappers.wrapper import Wrapper


def describe_codec(codec: Codec) -> dict[str, str]:
    """`codec`, its name, and `codec.<field>` for each of its fields.

    An unregistered codec's name includes its class; the fields of a codec that is no dataclass are its public
    attributes. Equal values give equal text on every rank; tensors are described by a digest. Raises
    ValueError for a value whose text would equal that of others of its type.
    """
    found: dict[str, Any] = {}
    inner: Any = codec
    while isinstance(inner, Wrapper):
        found |= inner.options()
        inner = inner.inner
    if dataclasses.is_dataclass(inner):
        found |= {field.name: getattr(inner, field.name) for field in dataclasses.fields(inner)}
    else:
        public = {name: value for name, value in vars(inner).items() if not name.startswith("_")}
        public.pop("memories", None)  # state, no setting
        found |= public
    own = type(inner)
    registered = codec.name in codec_names() and codec_class(codec.name) is own
    name = codec.name if registered else f"{codec.name} ({own.__module__}.{own.__qualname__})"
    words = {}
    for key, value in found.items():
        if key != "name":
            try:
                words[f"codec.{key}"] = _word(value)
            except TypeError as error:
                raise ValueError(
                    f"codec.{key} cannot be compared between the ranks: {error}; give the class a __repr__ "
                    f"that tells its values, or call the attribute _{key} if it changes no result"
                ) from None
    return {"codec": name} | words


def _word(value: Any) -> str:
    """A value as text. Raises TypeError if it has no unambiguous text."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype}{list(value.shape)} {digest(data)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_word, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_word(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if value is None or isinstance(value, (bool, str, torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, Integral):  # numpy's have words of their own
        return str(int(value))
    if isinstance(value, Real):
        return str(float(value))
    return _word_of_object(value)


def _word_of_object(value: Any) -> str:
    kind = type(value).__qualname__
    if isinstance(value, AbstractSet):
        return "{" + ", ".join(sorted(map(_word, value))) + "}"
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, torch.nn.Module):
        return f"{kind} {digest(repr(value) + _word(value.state_dict()))}"
    if isinstance(value, partial):
        return f"{called(value.func)}{_word(value.args)}{_word(value.keywords)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return kind + _word({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if hasattr(value, "tobytes") and hasattr(value, "shape"):  # numpy's arrays, whose repr leaves out most
        return f"{getattr(value, 'dtype', kind)}{list(value.shape)} {digest(value.tobytes())}"
    if callable(value) and hasattr(value, "__qualname__"):
        return called(value)
    words = repr(value)
    if " at 0x" in words:  # an address
        raise TypeError(f"{kind} has no text for its value")
    return words


def called(function: Any) -> str:
    """The name of a function, or of the class of a callable object."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def digest(content: str | bytes) -> str:
    """12 hex digits that identify contents."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:12]

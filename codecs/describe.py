"""What a codec is set to, in words: for ranks to compare, and to be kept beside its state."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.exclude import Exclude
from gradwire.codecs.feedback import ErrorFeedback
from gradwire.codecs.interface import Codec
from gradwire.codecs.registry import codec_classes


def describe_codec(codec: Codec) -> dict[str, str]:
    """`codec`, its name, and `codec.<field>` for each of its fields.

    The name of a codec that is not registered comes with its class; the fields of one that is no dataclass
    are its public attributes. Values are the same text wherever they are the same, tensors a digest.
    """
    found: dict[str, Any] = {}
    inner: Any = codec
    if isinstance(inner, Exclude):
        found["exclude"], inner = inner._globs, inner._codec
    if isinstance(inner, ErrorFeedback):
        found["ef"], inner = True, inner._codec
    if dataclasses.is_dataclass(inner):
        found |= {field.name: getattr(inner, field.name) for field in dataclasses.fields(inner)}
    else:
        found |= {name: value for name, value in vars(inner).items() if not name.startswith("_")}
    own = type(inner)
    registered = codec_classes().get(codec.name) is own
    name = codec.name if registered else f"{codec.name} ({own.__module__}.{own.__qualname__})"
    return {"codec": name} | {f"codec.{key}": _word(value) for key, value in found.items() if key != "name"}


def _word(value: Any) -> str:
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype}{list(value.shape)} {digest(data)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_word, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_word(each)}" for key, each in value.items()) + "}"
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return str(value)
    return called(value) if callable(value) else type(value).__qualname__


def called(function: Any) -> str:
    """The name of a function, or of the class of what can be called."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def digest(content: str | bytes) -> str:
    """12 hex digits that tell contents apart."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:12]

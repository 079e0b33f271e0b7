"""The model families: every file in `families/` is one, and has its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from gradwire.harness.models import families

if TYPE_CHECKING:
    from gradwire.harness.models.settings import ModelConfig


@dataclass(frozen=True)
class Family:
    """How a `ModelConfig` becomes the config of one family of transformers."""

    config_class: str
    """Name of the config class in transformers. It is not imported here: importing transformers takes
    seconds."""
    objectives: tuple[str, ...]
    fields: Mapping[str, str]
    """Our field to theirs, for every field that shapes the weights."""
    dropout_fields: tuple[str, ...]
    grouped_heads: bool
    """Whether `num_kv_heads` may differ from `num_heads`."""
    own_head_dim: bool
    """Whether `head_dim` may differ from `hidden_size / num_heads`."""
    extras: Callable[[ModelConfig], dict[str, Any]]
    """Settings that follow from the config as a whole, not from one field."""


def family_names() -> tuple[str, ...]:
    """The names of all families, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(families.__path__)))


@cache
def family(name: str) -> Family:
    """Returns the family of that name; `check(config)` has already refused unknown names."""
    assert name in family_names(), name
    found = importlib.import_module(f"{families.__name__}.{name}").FAMILY
    assert isinstance(found, Family)
    return found

"""Configurations of the command line, composed and run in this process."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from commands_here import in_this_process, run_py, task
from omegaconf import DictConfig, OmegaConf

from gradwire.harness.config.compose import compose, parse

__all__ = ["in_this_process", "run_py", "task"]


@cache
def composed(*overrides: str) -> DictConfig:
    """Composing takes a quarter of a second, so tests of single values share one composition."""
    return compose(overrides)


def set_values(*overrides: str) -> DictConfig:
    """`size=tiny cluster.workers=4` with choices composed and values set, as the command line sets them."""
    parsed = {text: parse([text])[0] for text in overrides}
    choices = [text for text, override in parsed.items() if "." not in override.key_or_group]
    config = copy.deepcopy(composed("size=tiny", "cluster.workers=4", *choices))
    for override in parsed.values():
        if "." in override.key_or_group:
            OmegaConf.update(config, override.key_or_group, override.value())
    return config


@pytest.fixture
def with_values() -> Callable[..., DictConfig]:
    return set_values


SHAPED_CHECK = "gradwire.harness.network.shaped.check"


@pytest.fixture
def links_can_be_shaped(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Sets this machine's answer to `network=shaped`, at first that it works."""

    def answer(reason: str | None) -> None:
        module: Any = types.ModuleType(SHAPED_CHECK)
        module.why_not = lambda: reason
        monkeypatch.setitem(sys.modules, SHAPED_CHECK, module)

    answer(None)
    return answer

"""The names that SDP4Bit gives to ways of sending weights and gradients (its Table 1), for labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EXACT = "baseline"

WEIGHTS = {"exact": "", "qw": "qW", "qwd": "qWD"}

WHOLE = {"": EXACT, "qWD + TLq-HS": "SDP4Bit", "qW + ULq": "ZeRO++"}
"""Pairs that have a name of their own."""

GROUPS = ("codec", "parallel")
"""The groups whose settings make a strategy."""


def strategy(config: Mapping[str, Any]) -> str | None:
    """The strategy of a run's settings by dotted key, groups of quantization aside; None where the paper has
    none."""
    if config.get("parallel.name") != "sharded" or config.get("parallel.weights") not in WEIGHTS:
        return None
    gradients = _gradients(config)
    if gradients is None or config.get("parallel.weight_bits", 4) != 4:
        return None
    both = " + ".join(filter(None, (WEIGHTS[config["parallel.weights"]], gradients)))
    return WHOLE.get(both, both)


def _gradients(config: Mapping[str, Any]) -> str | None:
    """Nothing for gradients in float32."""
    if config.get("codec.name") == "fp32":
        return ""
    if config.get("codec.name") != "all_to_all" or config.get("codec.bits_node") != 4:
        return None
    smoothed = config.get("codec.hadamard") != "none"
    names = {(4, False): "ULq", (8, False): "TLq", (8, True): "TLq-HS"}
    return names.get((config.get("codec.bits_local"), smoothed))  # type: ignore[arg-type]


def strategies(configs: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Each config's strategy; None unless there are several, and all have one."""
    found = [name for name in map(strategy, configs) if name is not None]
    return found if len(found) == len(configs) and len(set(found)) > 1 else None

"""Blocks: groups of a model's layers, in the order in which a forward pass uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate

from torch import nn

from gradwire.codecs.wording import shortened
from gradwire.harness.parallel.buckets import parameter_names

MOST_CONTAINERS = 2
"""The number of nested lists of layers that name a layer; a stage of ResNet consists of two."""


@dataclass(frozen=True)
class Block:
    """The `number`-th group of layers in the order of the forward pass: its parameters by name, and the
    modules that hold them."""

    number: int
    parameters: Mapping[str, nn.Parameter]
    modules: tuple[nn.Module, ...]

    @property
    def numel(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters.values())


def make_blocks(model: nn.Module, count: int, layers: Sequence[Sequence[str]]) -> list[Block]:
    """The trainable parameters of `model` in blocks, either given by the globs of `layers`, a list for each
    block, or `count` blocks of whole layers and nearly equal size.

    Raises ValueError, one line with the fix, for globs that name no layer, omit a layer or name one twice,
    and for more blocks than layers.
    """
    names = {name: p for name, p in parameter_names(model).items() if p.requires_grad}
    groups = _named(names, layers) if layers else _even(names, count)
    users: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(module)
    found = []
    for number, group in enumerate(groups):
        own = {name: names[name] for name in group}
        modules = {id(module): module for p in own.values() for module in users[id(p)]}
        found.append(Block(number, own, tuple(modules.values())))
    return found


def _named(names: Mapping[str, nn.Parameter], layers: Sequence[Sequence[str]]) -> list[list[str]]:
    """The parameters that each block's globs match, by their own name or the name of their layer."""
    for number, globs in enumerate(layers):
        if not globs or not isinstance(globs, Sequence) or not all(isinstance(g, str) and g for g in globs):
            raise ValueError(
                f"parallel.layers={shortened(list(layers))}: block {number} is {globs}; give a list of "
                "globs, e.g. [transformer.h.0]"
            )
    taken: dict[str, int] = {}
    for number, globs in enumerate(layers):
        for glob in globs:
            matched = [name for name in names if fnmatchcase(name, glob) or fnmatchcase(name, f"{glob}.*")]
            if not matched:
                raise ValueError(
                    f"parallel.layers={shortened(list(layers))}: {glob} of block {number} names no layer; "
                    f"one is {next(iter(names))}"
                )
            for name in matched:
                if taken.setdefault(name, number) != number:
                    raise ValueError(
                        f"parallel.layers: {name} is in blocks {taken[name]} and {number}; name it once"
                    )
    left = [name for name in names if name not in taken]
    if left:
        raise ValueError(
            f"parallel.layers leaves out {left[0]}{f' and {len(left) - 1} more' if left[1:] else ''}; add "
            "them to a block"
        )
    return [[name for name in names if taken[name] == number] for number in range(len(layers))]


def _even(names: Mapping[str, nn.Parameter], count: int) -> list[list[str]]:
    """Consecutive layers in `count` groups, such that the largest group is as small as possible."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(_layer(name), []).append(name)
    if count > len(layers):
        raise ValueError(
            f"parallel.num_blocks={count} is more than the model's {len(layers)} layers; choose at most "
            f"{len(layers)}"
        )
    sizes = [sum(names[name].numel() for name in group) for group in layers.values()]
    groups = list(layers.values())
    return [
        [name for layer in groups[first:stop] for name in layer] for first, stop in _partition(sizes, count)
    ]


def _layer(name: str) -> str:
    """The layer that a parameter belongs to: the innermost element of a list of layers, or else its
    module.
    """
    parts, containers = name.split("."), 0
    for index, part in enumerate(parts):
        if part.isdecimal():
            containers += 1
            if containers == MOST_CONTAINERS or not any(p.isdecimal() for p in parts[index + 1 :]):
                return ".".join(parts[: index + 1])
    return ".".join(parts[:-1])


def _partition(sizes: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Cuts `sizes` into `count` non-empty stretches, such that the largest sum is as small as possible."""
    before = [0, *accumulate(sizes)]
    best = [[(before[stop], 0) for stop in range(len(sizes) + 1)]]
    for groups in range(2, count + 1):
        row = [(before[-1] + 1, 0)] * (len(sizes) + 1)
        for stop in range(groups, len(sizes) + 1):
            row[stop] = min(
                (max(best[-1][first][0], before[stop] - before[first]), first)
                for first in range(groups - 1, stop)
            )
        best.append(row)
    cuts = [len(sizes)]
    for row in reversed(best[1:]):
        cuts.append(row[cuts[-1]][1])
    cuts.append(0)
    return zip(reversed(cuts[1:]), reversed(cuts[:-1]), strict=True)

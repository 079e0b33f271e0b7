"""The two tiers of tests. The fast one takes a sample of what would cost too much, drawn by the commit.

A test function has a budget of CPU time in the fast tier. Where its items cost more, according to
`costs.txt`, the corners of its parameters stay, and further items are drawn up to the budget; the others are
marked `full`, as are the tests marked so by hand. Items that cost more than most of a second take turns,
corners or not: each commit draws some of them. Other commits draw others, so that a week of commits runs most
tests, and the full tier runs all that the fast one leaves out. Tests marked `whole` are never left out;
`every_value` keeps each value of each parameter.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

BUDGET_S = 0.2
"""CPU time of one test function in the fast tier, in seconds, unless its corners alone need more."""

USUAL_COST_S = 0.004
"""The cost of an item of a function that is not on record: most of them cost less."""

TURN_S = 0.5
"""An item that costs twice, three times, ... as much runs at one of two, three, ... commits, on average."""

MOST_TURNS = 16
"""The largest number of commits among which an item takes turns."""

LONG_FILE_S = 100.0

COSTS = Path(__file__).with_name("costs.txt")
VARIABLE = "GRADWIRE_SAMPLE"
COUNTS = frozenset({"n", "size", "ranks", "workers", "numel", "count", "length", "stages"})
"""Parameters of whose numbers small, odd and even ones and powers of two are different cases."""

MANY = 4
"""Up to so many values of a count are no reason to add any to the first and the last."""

FAST = "not full"
"""The expression by which pytest selects unless another is given, in pyproject.toml."""

Pair = tuple[str, Hashable]


def sampling_seed(folder: Path) -> str:
    """The value of GRADWIRE_SAMPLE, or the commit of `folder`; "0" without git."""
    if given := os.environ.get(VARIABLE):
        return given
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "0"
    return found.stdout.strip()


def read_costs(path: Path) -> dict[str, float]:
    """CPU seconds of an item, by test function, from lines of `<seconds> <function>`."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {function: float(seconds) for seconds, function in (line.split(maxsplit=1) for line in lines)}


def function_of(node_id: str) -> str:
    """The test function, without the parameters of an item."""
    return node_id.split("[")[0]


def has_mark(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


def pairs_of(item: pytest.Item) -> dict[str, Hashable]:
    """An item's parameters by name, as what can be compared: values, or else the identity of objects."""
    pairs: dict[str, Hashable] = {}
    for name, value in item.callspec.params.items():  # type: ignore[attr-defined]
        try:
            hash(value)
        except TypeError:
            pairs[name] = id(value)
        else:
            pairs[name] = (type(value), value)
    return pairs


def draw_number(seed: str, text: str) -> int:
    """A number that depends on the sample's seed and the text alone."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {text}".encode(), digest_size=8).digest())


def corners(values: Mapping[str, Sequence[Hashable]], seed: str) -> set[Pair]:
    """The first and the last value of each parameter, and counts of each kind: each sample has them."""
    found = {(name, value) for name, several in values.items() for value in (several[0], several[-1])}
    for name in COUNTS & values.keys():
        counts = {value[1]: value for value in values[name] if isinstance(value, tuple) and value[0] is int}
        if len(counts) <= MANY:
            continue
        found |= {(name, counts[small]) for small in (1, 2, 3) if small in counts}
        large = sorted(counts.keys() - {0, 1, 2, 3}, key=lambda count: draw_number(seed, f"{name}={count}"))
        odd = [count for count in large if count % 2]
        powers = [count for count in large if count & (count - 1) == 0]
        found |= {(name, counts[several[0]]) for several in (odd, powers) if several}
    return found


def draw(items: Sequence[pytest.Item], quota: int, seed: str) -> set[pytest.Item]:
    """Items of a function: those that show most corners, then, up to the quota, most values not yet drawn."""
    ordered = sorted(items, key=lambda item: sorted(item.callspec.indices.items()))  # type: ignore[attr-defined]
    pairs = {item: set(pairs_of(item).items()) for item in ordered}
    values: dict[str, dict[Hashable, None]] = defaultdict(dict)
    for item in ordered:
        for name, value in pairs_of(item).items():
            values[name][value] = None
    if has_mark(items[0], "every_value"):
        missing = set().union(*pairs.values())
    else:
        missing = corners({name: list(several) for name, several in values.items()}, seed)
    left = sorted(ordered, key=lambda item: draw_number(seed, item.nodeid))
    drawn: set[pytest.Item] = set()
    seen: set[Pair] = set()
    while left and (missing or len(drawn) < quota):
        best = max(left, key=lambda item: (len(pairs[item] & missing), len(pairs[item] - seen)))
        left.remove(best)
        drawn.add(best)
        missing -= pairs[best]
        seen |= pairs[best]
    return drawn


def quota(cost_s: float) -> int:
    """The number of items of a function that are drawn, if its corners are not more."""
    return max(1, int(BUDGET_S / cost_s))


def turns(cost_s: float) -> int:
    """The number of commits among which an item takes turns."""
    return max(1, min(round(cost_s / TURN_S), MOST_TURNS))


def is_sampled(cost_s: float, number: int) -> bool:
    """True if any of so many items of a function may be left out."""
    return number > quota(cost_s) or turns(cost_s) > 1


def left_out(items: Iterable[pytest.Item], seed: str, costs: Mapping[str, float]) -> list[pytest.Item]:
    """The items that the fast tier leaves to the full one."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not has_mark(item, "full") and not has_mark(item, "whole"):
            functions[function_of(item.nodeid)].append(item)
    left: list[pytest.Item] = []
    for function, several in functions.items():
        cost_s = costs.get(function, USUAL_COST_S)
        chosen = set(several)
        if len(several) > quota(cost_s):
            chosen = draw(several, quota(cost_s), seed)
        among = 1 if has_mark(several[0], "every_value") else turns(cost_s)
        left += [item for item in several if item not in chosen or draw_number(seed, item.nodeid) % among]
    return left


def begin_with_long_files(items: list[pytest.Item], costs: Mapping[str, float]) -> None:
    """Sort items of files that take minutes to the front: begun last, they keep one process busy alone."""
    seconds: dict[Path, float] = defaultdict(float)
    for item in items:
        seconds[item.path] += costs.get(function_of(item.nodeid), 0.0)
    items.sort(key=lambda item: -seconds[item.path] if seconds[item.path] > LONG_FILE_S else 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that the fast tier leaves out. Tests given by name are all run."""
    costs = read_costs(COSTS)
    begin_with_long_files(items, costs)
    if any("::" in argument for argument in config.args):
        if config.option.markexpr == FAST:
            config.option.markexpr = ""
        return
    for item in left_out(items, os.environ[VARIABLE], costs):
        item.add_marker(pytest.mark.full)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how the same sample is drawn again."""
    seed = os.environ[VARIABLE]
    if config.option.markexpr == FAST:
        terminalreporter.write_line(f"fast tier, sample {seed}: {VARIABLE}={seed} draws it again")

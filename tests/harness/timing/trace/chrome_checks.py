"""The requirements of chrome://tracing and Perfetto on a file."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

Event = dict[str, Any]

NEGLIGIBLE_US = 1e-6
"""A thousandth of the nanosecond that times are rounded to."""


def check_chrome(text: str) -> list[Event]:
    """AssertionError unless every event is well formed, rows are named and free of overlaps, and flows are
    pairs that lead from a bar to one that ends no earlier; returns the events."""
    document = json.loads(text, parse_constant=_refuse)
    events: list[Event] = document["traceEvents"]
    assert {event["ph"] for event in events} <= set("MXsf")
    for event in events:
        _check_form(event)
    _check_names(events)
    bars = _bars_by_row(events)
    for row in bars.values():
        for one, other in pairwise(row):
            assert one["ts"] + one["dur"] <= other["ts"] + NEGLIGIBLE_US, f"{one} and {other} overlap"
    _check_flows(events, bars)
    return events


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _check_form(event: Event) -> None:
    assert isinstance(event["name"], str)
    assert event["name"]
    assert isinstance(event["pid"], int)
    assert event["pid"] > 0, "process 0 is the idle one"
    assert isinstance(event["tid"], int)
    assert isinstance(event.get("args", {}), dict)
    if event["ph"] == "M":
        return
    for key in ("ts", "dur") if event["ph"] == "X" else ("ts",):
        assert math.isfinite(event[key])
        assert event[key] >= 0, event
    if event["ph"] in "sf":
        assert event["cat"]
        assert isinstance(event["id"], int)
    if event["ph"] == "f":
        assert event["bp"] == "e", "else it would belong to the next bar"


def _check_names(events: list[Event]) -> None:
    named = Counter((event["pid"], event["tid"]) for event in events if event["name"] == "thread_name")
    processes = Counter(event["pid"] for event in events if event["name"] == "process_name")
    assert set(named.values()) == set(processes.values()) == {1}
    assert len({tid for _, tid in named}) == len(named), "a thread's number is its own in all processes"
    for event in events:
        if event["ph"] != "M":
            assert (event["pid"], event["tid"]) in named, event
            assert event["pid"] in processes


def _bars_by_row(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
    return {row: sorted(bars, key=lambda bar: (bar["ts"], bar["dur"])) for row, bars in rows.items()}


def _check_flows(events: list[Event], bars: dict[tuple[int, int], list[Event]]) -> None:
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["cat"], event["id"]].append(event)
    ended = set()
    for start, finish in flows.values():
        assert (start["ph"], finish["ph"]) == ("s", "f")
        assert start["ts"] <= finish["ts"], f"{start} is received before it is sent"
        sent, received = (_bar_of(event, bars) for event in (start, finish))
        assert (sent["cat"], received["cat"]) == ("network out", "network in")
        assert sent["name"] == received["name"]
        assert sent["args"]["bytes"] == received["args"]["bytes"] > 0
        assert (sent["args"]["peer"], received["args"]["peer"]) == (finish["pid"] - 1, start["pid"] - 1)
        ended |= {id(sent), id(received)}
    network = [bar for row in bars.values() for bar in row if bar["cat"].startswith("network")]
    assert {id(bar) for bar in network} == ended, "every message has an arrow"
    assert len(network) == 2 * len(flows)


def _bar_of(event: Event, bars: dict[tuple[int, int], list[Event]]) -> Event:
    """The bar on which a flow begins or ends: the last one that has begun."""
    begun = [bar for bar in bars[event["pid"], event["tid"]] if bar["ts"] <= event["ts"]]
    assert begun, event
    assert event["ts"] <= begun[-1]["ts"] + begun[-1]["dur"] + NEGLIGIBLE_US, event
    return begun[-1]

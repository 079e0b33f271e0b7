"""`network.json`: what the links of a shaped network carried when they were measured, one entry per
attempt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwire.harness.files.reading import MissingFileError, UnusableFileError
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.writing import write_atomically

FILE = "network.json"

REMEDY = "resume=never starts over"

Network = dict[str, Any]
"""The network of one attempt: `from_step` as in `run.json`, its settings, and rates in Mbit/s."""


def read_networks(directory: Path) -> list[Network]:
    """The networks of the attempts in `directory`, the oldest first; none where it has no file of them.

    Raises UnusableFileError.
    """
    path = directory / FILE
    try:
        networks: list[Network] = read_json(path, remedy=REMEDY, inside=directory, expected=list)
    except MissingFileError:
        return []
    for network in networks:
        if not isinstance(network, dict) or not isinstance(network.get("from_step"), int):
            raise UnusableFileError(path, "holds an attempt's network that is none", REMEDY)
    return networks


def write_networks(directory: Path, networks: Sequence[Network]) -> None:
    write_atomically(directory / FILE, json.dumps(networks, indent=1) + "\n")

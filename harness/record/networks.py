"""`network.json`: what a shaped network's links were found to carry, an entry for each attempt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwire.harness.record.files import write_atomically

FILE = "network.json"

Network = dict[str, Any]
"""Of one attempt: `from_step` as in `run.json`, its settings, and rates in Mbit/s."""


def read_networks(directory: Path) -> list[Network]:
    """What `directory` says, the oldest attempt first; empty where it says nothing.

    Files of older versions hold the last attempt's alone, without `from_step`. Raises ValueError if the file
    cannot be read.
    """
    try:
        found = json.loads((directory / FILE).read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ValueError(f"{directory / FILE} cannot be read ({error}); resume=never starts over") from None
    return [found] if isinstance(found, dict) else list(found)


def write_networks(directory: Path, networks: Sequence[Network]) -> None:
    write_atomically(directory / FILE, json.dumps(networks, indent=1) + "\n")

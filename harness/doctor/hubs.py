"""Checks whether the servers for models, data and wandb can be reached from this machine."""

from __future__ import annotations

import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradwire.harness.doctor.findings import Environment, Finding, FindingsSection
from gradwire.harness.tracking.settings import choose_mode, logged_in, server

TIMEOUT_S = 3.0
TRUE = ("1", "ON", "YES", "TRUE")

Reach = Callable[[str], str | None]
"""Maps an address to the reason why it cannot be reached; None if it can."""


@dataclass(frozen=True)
class Hub:
    """A server, the environment variable that forbids requests to it, and what is unavailable without it."""

    name: str
    address: str
    forbidden_by: str | None
    disables: str
    remedy: str


def hubs(environment: Environment = os.environ, reach: Reach | None = None) -> FindingsSection:
    """The Hugging Face hub, the wandb server and the login; servers are queried at the same time, unless that
    is forbidden."""
    known = [
        Hub(
            "Hugging Face",
            environment.get("HF_ENDPOINT") or "https://huggingface.co",
            _offline(environment),
            "downloads (size=tiny and local folders need none)",
            "model.path=, dataset.path=, or HF_ENDPOINT=<a mirror>",
        ),
        Hub(
            "wandb",
            server(environment),
            _wandb_offline(environment),
            "tracking.mode=online (offline runs can be uploaded later)",
            "WANDB_BASE_URL=<your server>",
        ),
    ]
    answers = ask([hub.address for hub in known if hub.forbidden_by is None], reach or _reach)
    return FindingsSection("Hubs", [*(_finding(hub, answers) for hub in known), _login(environment)])


def ask(addresses: list[str], reach: Reach, timeout_s: float = TIMEOUT_S) -> dict[str, str | None]:
    """Maps each address to the reason why it cannot be reached (None: it can). Queries all at the same time,
    for at most `timeout_s` seconds."""
    answers: dict[str, str | None] = dict.fromkeys(addresses, f"no answer within {timeout_s:g} s")

    def note(address: str) -> None:
        answers[address] = reach(address)

    # Name look-ups have no time limit, so a thread may have to be left running.
    threads = [threading.Thread(target=note, args=(address,), daemon=True) for address in addresses]
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(answers)


def _reach(address: str) -> str | None:
    """Tries to reach an address; any answer counts, because even a refusal comes from the server."""
    try:
        request = urllib.request.Request(address, method="HEAD")
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None


def _finding(hub: Hub, answers: Mapping[str, str | None]) -> Finding:
    if hub.forbidden_by is not None:
        value, remedy = f"not asked: {hub.forbidden_by} is set", f"unset {hub.forbidden_by.split('=')[0]}"
        return Finding(hub.name, value, "missing", hub.disables, remedy)
    reason = answers[hub.address]
    if reason is None:
        return Finding(hub.name, f"{hub.address} answers")
    return Finding(hub.name, f"{hub.address}: {reason}", "missing", hub.disables, hub.remedy)


def _login(environment: Environment) -> Finding:
    mode = choose_mode("auto", environment)
    if logged_in(environment):
        return Finding("wandb login", f"there is a key; tracking=wandb is {mode}")
    return Finding(
        "wandb login", f"none; tracking=wandb is {mode}", "missing", "tracking.mode=online", "wandb login"
    )


def _offline(environment: Environment) -> str | None:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((name for name in names if environment.get(name, "").upper() in TRUE), None)


def _wandb_offline(environment: Environment) -> str | None:
    mode = environment.get("WANDB_MODE", "")
    return f"WANDB_MODE={mode}" if mode.lower() in ("offline", "dryrun", "disabled") else None

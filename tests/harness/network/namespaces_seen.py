"""Reads the kernel's view of namespaces, and runs functions inside one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gradwire.harness.network.shaped.namespace import Entrance

Result = TypeVar("Result")

OURS = os.readlink("/proc/self/ns/net") if Path("/proc/self/ns/net").exists() else ""


def inside(path: str, function: Callable[[], Result]) -> Result:
    """`function()` in the network namespace at `path`."""

    def enter_and_call() -> Result:
        Entrance(path, "").enter()
        return function()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(enter_and_call).result()


def command_inside(path: str, command: str) -> str:
    """The output of a command that must succeed in the network namespace at `path`."""

    def run() -> str:
        ran = subprocess.run(command.split(), capture_output=True, text=True, timeout=20, check=False)
        assert ran.returncode == 0, (command, ran.stderr)
        return ran.stdout

    return inside(path, run)


def of_process(pid: int) -> str:
    return f"/proc/{pid}/ns/net"


def held_by(pid: int | str) -> set[str]:
    """The network namespaces other than ours that a process is in or holds open."""
    links = [*_listed(f"/proc/{pid}/fd"), *(f"{task}/ns/net" for task in _listed(f"/proc/{pid}/task"))]
    return {name for link in links if (name := _read(link)).startswith("net:[")} - {OURS}


def held_by_all() -> set[str]:
    """The network namespaces that all processes are in or hold open."""
    return {name for pid in os.listdir("/proc") if pid.isdigit() for name in held_by(pid)}


def assert_gone(namespaces: Iterable[str]) -> None:
    """No process is in one of these, or holds one open, or does so within seconds."""
    deadline = time.monotonic() + 10
    while left := held_by_all().intersection(namespaces):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Asserts that the code inside leaves the root network alone and, within seconds, nothing open."""
    network, held = root_network(), _descriptors()
    yield
    assert root_network() == network
    deadline = time.monotonic() + 10
    while left := _descriptors() - held:
        assert time.monotonic() < deadline, f"still open: {dict(left)}"
        time.sleep(0.05)


def root_network() -> list[object]:
    """Interfaces, queues and named namespaces where nothing may ever change."""
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    queues = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True, check=True).stdout
    named = sorted(path.name for path in Path("/run/netns").glob("*"))
    return [[(link["ifname"], link["address"]) for link in links], queues, named]


def _descriptors() -> Counter[str]:
    """The descriptors that this process has open, except its own network's connections.

    Those are other tests' workers and stores, which connect and leave at any time. A connection inside
    a shaped network is in another namespace and counts.
    """
    tables = (Path(f"/proc/self/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6", "unix"))
    others = {f"socket:[{word}]" for table in tables for line in table for word in line.split()}
    seen = (_read(link) for link in _listed("/proc/self/fd"))
    return Counter(name for name in seen if name and name not in others)


def _listed(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:  # the process has ended
        return []


def _read(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""

"""One line says why links cannot be shaped here, for root and other users."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gradwire.harness.network.shaped import check

AS_NOBODY = """
import os
from concurrent.futures import thread
from gradwire.harness.network.shaped.check import why_not
from gradwire.harness.network.shaped.namespace import Namespace
os.setuid(65534)
print(why_not())
try:
    Namespace()
except OSError as error:
    print(error)
"""


@pytest.fixture
def root_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(check.shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(check, "try_namespace", lambda: None)


def test_nothing_is_missing(root_on_linux: None) -> None:
    assert check.why_not() is None


def test_another_system(root_on_linux: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert check.why_not() == "it needs Linux"


def test_not_root(root_on_linux: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert check.why_not() == "it needs root; use sudo"


def test_programs_are_missing(root_on_linux: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.shutil, "which", lambda name: None if name == "tc" else name)
    assert check.why_not() == "tc not found; install iproute2"
    monkeypatch.setattr(check.shutil, "which", lambda name: None)
    assert check.why_not() == "ip and tc not found; install iproute2"


def test_the_kernel_refuses(root_on_linux: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "try_namespace", lambda: "unshare: Operation not permitted")
    assert check.why_not() == "the kernel refuses: unshare: Operation not permitted"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_else_makes_no_namespace() -> None:
    """A process without the right is refused by the system itself, too."""
    ran = subprocess.run([sys.executable, "-c", AS_NOBODY], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "it needs root; use sudo\n[Errno 1] unshare: Operation not permitted\n", ran.stderr

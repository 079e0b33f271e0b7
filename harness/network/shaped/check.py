"""Checks whether links can be shaped on this machine, by shaping one in a short-lived process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PROGRAMS = ("ip", "tc")

TIMEOUT_S = 5.0

ATTEMPT = """
import ctypes, os, subprocess, sys
NEW_USER, NEW_NET = 0x10000000, 0x40000000
user, group = os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(NEW_NET if user == 0 else NEW_USER | NEW_NET):
    sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
if user:  # be root in there
    for name, text in ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1"):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
for command in (
    "ip link add gradwire0 type veth peer name gradwire1",
    "tc qdisc add dev gradwire0 root handle 1: htb default 1",
    "tc class add dev gradwire0 parent 1: classid 1:1 htb rate 100mbit",
    "tc qdisc add dev gradwire0 parent 1:1 bfifo limit 262144",
    "ip link add gradwire2 type bridge",
    "ip link set gradwire0 master gradwire2",
):
    try:
        ran = subprocess.run(command.split(), capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"{command.split()[0]}: {error.strerror}")
    if ran.returncode:
        sys.exit(f"{command}: {ran.stderr.strip()}")
"""
"""A program whose namespace disappears with its process."""


def why_not() -> str | None:
    """Returns None if `network=shaped` works on this machine, else the reason in one line, with the remedy if
    there is one.

    Tries it in a short-lived process. Does not import torch.
    """
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root; use sudo"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found; install iproute2"
    reason = try_namespace()
    return reason and f"the kernel refuses: {reason}"


def try_namespace(attempt: str = ATTEMPT) -> str | None:
    """Returns None if a namespace with a rate-limited link could be made, else the reason in one line."""
    command = [sys.executable, "-I", "-S", "-c", attempt]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S:g} s"
    except OSError as error:
        return str(error.strerror)
    if ran.returncode == 0:
        return None
    lines = ran.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {ran.returncode}"

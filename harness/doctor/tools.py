"""Programs other than Python: compilers for the kernels, and tools for shaping links."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable

from gradwire.harness.doctor.findings import Environment, Finding, FindingsSection, Run, found_or_missing
from gradwire.harness.network.shaped.check import try_namespace

TIMEOUT_S = 5.0


def output_of(command: list[str]) -> str | None:
    """The output of `command`; None if the command does not exist, fails, or takes longer than five
    seconds.
    """
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()


Which = Callable[[str], str | None]

COMPILERS = ("c++", "g++", "clang++")
WITHOUT_KERNELS = "kernels in {} (those in PyTorch, kernels=default, give the same bytes)"
WITHOUT_SHAPING = "network=shaped (network=paced and network=simulated need nothing)"


def tools(
    which: Which = shutil.which, run: Run = output_of, environment: Environment = os.environ
) -> FindingsSection:
    """Compilers, with their versions."""

    def version(name: str) -> str | None:
        path = which(name)
        return None if path is None else _version(run([path, "--version"])) or path

    candidates = filter(None, (environment.get("CXX"), *COMPILERS))
    compiler = next((f"{name} {found}" for name in candidates if (found := version(name))), None)
    return FindingsSection(
        "Tools",
        [
            found_or_missing("C++ compiler", compiler, WITHOUT_KERNELS.format("C++"), "apt-get install g++"),
            found_or_missing("cmake", version("cmake"), "building kernels", "pip install cmake"),
            found_or_missing(
                "nvcc", version("nvcc"), WITHOUT_KERNELS.format("CUDA"), "NVIDIA's CUDA toolkit"
            ),
            found_or_missing("git", version("git"), "the commit in records", "apt-get install git"),
        ],
    )


def shaping(
    which: Which = shutil.which,
    user: Callable[[], int] = os.geteuid,
    attempt: Callable[[], str | None] = try_namespace,
) -> FindingsSection:
    """Findings on the shaping of links; `attempt` returns the reason why network namespaces cannot be
    used.
    """
    account = Finding("user", "root")
    if user() != 0:
        account = Finding("user", "not root", "missing", WITHOUT_SHAPING, "sudo")
    reason = attempt()
    namespaces = Finding("network namespaces", "possible, with a shaped link inside (tried)")
    if reason is not None:
        namespaces = Finding(
            "network namespaces", f"not possible: {reason}", "missing", WITHOUT_SHAPING, "root"
        )
    return FindingsSection(
        "Network emulation",
        [
            account,
            found_or_missing("ip", which("ip"), WITHOUT_SHAPING, "apt-get install iproute2"),
            found_or_missing("tc", which("tc"), WITHOUT_SHAPING, "apt-get install iproute2"),
            namespaces,
        ],
    )


def _version(printed: str | None) -> str | None:
    """The first number with a dot that a program prints."""
    found = re.search(r"\d+(\.\d+)+", printed or "")
    return found[0] if found else None

"""Checks a wheel's libraries, and that they load: python tests/kernels/wheel_contents.py <folder>."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LOAD = """
import ctypes, sys
for path in sys.argv[2:]:
    handle = ctypes.CDLL(path)
    handle.gradwire_error.restype = ctypes.c_char_p
    assert handle.gradwire_abi_version() == int(sys.argv[1]), path
    assert b"out of range" in handle.gradwire_error(-2), path
"""
"""Run in a Python that finds nothing but its own modules."""


def check(wheel: Path) -> None:
    """Raises AssertionError, or CalledProcessError, for a wheel that would not work everywhere."""
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl") or "x86_64" not in wheel.name, wheel.name
    expected = ["cpu", "cuda", "simulator"] if _with_cuda() else ["cpu", "simulator"]
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        package = Path(folder) / "gradwire"
        libraries = sorted(path.name for path in (package / "lib").iterdir())
        assert libraries == [f"libgradwire_{name}.so" for name in expected], libraries
        source = (package / "codecs" / "native" / "loading.py").read_text()
        version = re.search(r"^ABI_VERSION = (\d+)$", source, re.MULTILINE)
        assert version is not None
        places = [str(package / "lib" / name) for name in libraries]
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", LOAD, version[1], *places],
            env={**os.environ, "LD_PRELOAD": ""},
            check=True,
        )
    print(f"{wheel.name}: {', '.join(libraries)}")


def _with_cuda() -> bool:
    """The decision of `csrc/CMakeLists.txt`: true if it builds the CUDA kernels."""
    asked = os.environ.get("GRADWIRE_CUDA", "AUTO").upper()
    gpus = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/proc/driver/nvidia/gpus").glob("*")]
    wanted = asked == "ON" or (asked == "AUTO" and (gpus or Path("/dev/dxg").exists()))
    return bool(wanted) and shutil.which("nvcc") is not None


if __name__ == "__main__":
    (found,) = Path(sys.argv[1]).glob("*.whl")
    check(found)

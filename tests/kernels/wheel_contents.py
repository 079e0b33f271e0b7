"""A look into a wheel, python tests/kernels/wheel_contents.py <folder>: libraries, and that they load."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("library", sys.argv[1])
module = sys.modules["library"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for name in sys.argv[2:]:
    assert module.library(name) is not None, f"the library for {name} is missing"
    assert "out of range" in module.library(name).error(-2)
assert "torch" not in sys.modules
print("level", module.cpu_level(), "GPUs", module.cuda_devices())
"""
"""In a Python that finds nothing but its own modules."""


def check(wheel: Path) -> None:
    """Raises AssertionError, or CalledProcessError, for a wheel that would not work everywhere."""
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl") or "x86_64" not in wheel.name, wheel.name
    expected = ["cpu", "cuda"] if _with_cuda() else ["cpu"]
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        package = Path(folder) / "gradwire"
        libraries = sorted(path.name for path in (package / "lib").iterdir())
        assert libraries == [f"libgradwire_{name}.so" for name in expected], libraries
        assert (package / "codecs" / "native" / "choice.py").is_file()
        subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                LOAD,
                package / "codecs" / "kernels" / "library.py",
                *expected,
            ],
            env={**os.environ, "GRADWIRE_LIBRARIES": str(package / "lib"), "LD_PRELOAD": ""},
            check=True,
        )
    print(f"{wheel.name}: {', '.join(libraries)}")


def _with_cuda() -> bool:
    """What `csrc/CMakeLists.txt` decides."""
    asked = os.environ.get("GRADWIRE_CUDA", "AUTO").upper()
    gpus = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/proc/driver/nvidia/gpus").glob("*")]
    wanted = asked == "ON" or (asked == "AUTO" and (gpus or Path("/dev/dxg").exists()))
    return bool(wanted) and shutil.which("nvcc") is not None


if __name__ == "__main__":
    (found,) = Path(sys.argv[1]).glob("*.whl")
    check(found)

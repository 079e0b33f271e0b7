"""Writes `machine.json`: the device and the commands whose results are beside it.

python tests/gpu/describe_machine.py <folder> <command>
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch

from gradwire.codecs.native.loading import library

ROOT = Path(__file__).parents[2]
NOT_FOUND = "not found out: cuobjdump is missing"


def machine_code(library: Path) -> str:
    """The architectures that a library's kernels are compiled for, e.g. `sm_80, sm_90`."""
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        return NOT_FOUND
    listed = subprocess.run([cuobjdump, "--list-elf", library], capture_output=True, text=True, check=True)
    return architectures(listed.stdout)


def architectures(listed: str) -> str:
    """The architectures in the output of `cuobjdump --list-elf`."""
    return ", ".join(sorted(set(re.findall(r"\bsm_\d+[a-z]?\b", listed)))) or "none"


def commit() -> str:
    """The commit of the sources; a packed copy has it in a file."""
    packed = ROOT / "COMMIT"
    if packed.is_file():
        return packed.read_text().strip()
    described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()


def driver() -> tuple[str, str]:
    """The first device's driver and its memory, as nvidia-smi says."""
    query = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    first = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    version, memory = first.split(", ")
    return version, memory


def with_command(path: Path, found: dict[str, object], command: str) -> dict[str, object]:
    """`found` with the commands of earlier calls and this one. Raises ValueError if an earlier call was on
    another device, or of other sources."""
    before = json.loads(path.read_text()) if path.is_file() else {}
    for key in ("commit", "device"):
        if before.get(key, found[key]) != found[key]:
            raise ValueError(
                f"{path} is of {key} {before[key]}, and this is {found[key]}; choose another OUT"
            )
    return found | {"commands": list(dict.fromkeys([*before.get("commands", []), command]))}


def main(arguments: list[str]) -> None:
    """Describe this machine in the folder of `arguments`."""
    folder, command = arguments
    version, memory = driver()
    built = library("cuda")
    found: dict[str, object] = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "device": torch.cuda.get_device_name(0),
        "driver": version,
        "memory": memory,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": "none" if built is None else machine_code(built.path),
    }
    path = Path(folder) / "machine.json"
    path.write_text(json.dumps(with_command(path, found, command), indent=2) + "\n")
    print(path.read_text(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])

"""nvcc's machine code for the CUDA kernels: registers, local memory, wide accesses, instructions.

The figures of the hot kernels are kept in `csrc/figures.json`. `python tests/kernels/cuda_code.py --build`
compiles the library to inspect, in a folder that is kept: this takes minutes at first, and no time until the
sources or nvcc change. `--record` does so, too, and writes the figures anew. cuobjdump and nvdisasm come with
CUDA's toolkit, or by `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

FIGURES = ROOT / "csrc" / "figures.json"

FOLDER = ROOT / "build" / "cuda_code"

SOURCES = ("CMakeLists.txt", "csrc/CMakeLists.txt", "csrc/include/**/*", "csrc/cuda/*")
"""What the code depends on, beside nvcc."""

RECORD = "python tests/kernels/cuda_code.py --record"

ARCHITECTURE = "sm_90"

MARGIN = 1.05
"""How much registers and instructions may grow before the gate fails."""

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_RESOURCES = re.compile(r"Function (\S+):\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_FILE = re.compile(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+)_cu_[0-9a-f]+")


@dataclass(frozen=True)
class Code:
    """One kernel's machine code. `wide_loads` and `wide_stores` take 16 bytes each, `local` are accesses to
    local memory, where spilled registers go."""

    registers: int
    instructions: int
    wide_loads: int
    wide_stores: int
    local: int


def tools() -> dict[str, str] | None:
    """Paths of the disassembler's two programs, None where they are not."""
    folders = [Path(path) / "nvidia" / "cu13" / "bin" for path in sys.path if path.endswith("site-packages")]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    found = {name: shutil.which(name, path=path) for name in ("cuobjdump", "nvdisasm")}
    return {name: where for name, where in found.items() if where} if all(found.values()) else None


def compiler() -> str | None:
    """nvcc's version, `13.0`; None without nvcc."""
    if shutil.which("nvcc") is None:
        return None
    printed = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"release ([\d.]+)", printed)
    return match and match[1]


def built() -> Path | None:
    """The library that `build` has made of these sources with this nvcc; None before it has."""
    stamp = FOLDER / "sources"
    made = stamp.is_file() and stamp.read_text() == fingerprint()
    return FOLDER / "csrc" / "libgradwire_cuda.so" if made else None


def build() -> Path:
    """The library for `ARCHITECTURE` alone, compiled unless it has been. Needs nvcc, cmake and ninja."""
    found = built()
    if found is not None:
        return found
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "CUDAARCHS": f"{ARCHITECTURE.removeprefix('sm_')}-real", "PATH": programs}
    cmake = shutil.which("cmake", path=programs)
    assert cmake is not None, "needs cmake"
    stamp = FOLDER / "sources"
    stamp.unlink(missing_ok=True)
    for step in (
        ["-S", str(ROOT), "-B", str(FOLDER), "-G", "Ninja", "-DGRADWIRE_CUDA=ON"],
        ["--build", str(FOLDER), "--target", "gradwire_cuda"],
    ):
        subprocess.run([cmake, *step], env=environment, check=True)
    stamp.write_text(fingerprint())
    found = built()
    assert found is not None and found.is_file()
    return found


def fingerprint() -> str:
    """A hash of the sources and nvcc's version: what a library was made of."""
    digest = hashlib.sha256(str(compiler()).encode())
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def kernels(library: Path) -> dict[str, Code]:
    """The machine code of every kernel of a library: `<file>.cu <function and template arguments>` to it."""
    sass = {name: Counter(operations) for name, operations in _functions(_dump(library, "-sass"))}
    registers = {name: int(count) for name, count, *_ in _RESOURCES.findall(_dump(library, "-res-usage"))}
    return dict(sorted((readable(name), _code(sass[name], registers[name])) for name in sass))


def _dump(library: Path, *what: str) -> str:
    known = tools()
    assert known is not None, "needs cuobjdump and nvdisasm"
    command = [known["cuobjdump"], *what, "-arch", ARCHITECTURE, str(library)]
    environment = {**os.environ, "NVDISASM_PATH": str(Path(known["nvdisasm"]).parent)}
    environment["PATH"] = f"{Path(known['nvdisasm']).parent}{os.pathsep}{environment.get('PATH', '')}"
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def _functions(listing: str) -> Iterator[tuple[str, list[str]]]:
    for part in re.split(r"\n\s*Function : ", listing)[1:]:
        name, _, body = part.partition("\n")
        yield name.strip(), [operation for operation in _INSTRUCTION.findall(body) if operation != "NOP"]


def _code(operations: Mapping[str, int], registers: int) -> Code:
    def count(kind: str, part: str = "") -> int:
        return sum(n for name, n in operations.items() if name.split(".")[0] == kind and part in name)

    return Code(
        registers,
        sum(operations.values()),
        count("LDG", ".128"),
        count("STG", ".128"),
        count("LDL") + count("STL"),
    )


def readable(symbol: str) -> str:
    """`statistics.cu statistics<float>` from a mangled name, whose middle changes from build to build."""
    file = _FILE.search(symbol)
    demangled = subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=True).stdout.strip()
    dropped = r"_GLOBAL__N__\w+::|\(anonymous namespace\)::|^void |\((?:int|bool|unsigned int)\)"
    name = re.sub(dropped, "", demangled)
    return f"{file[1] if file else ''}.cu {_without_parameters(name)}"


def _without_parameters(name: str) -> str:
    """Up to the parenthesis of the parameters: one outside of template arguments."""
    depth = 0
    for place, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0 and place:
            return name[:place]
    return name


def hot(found: Mapping[str, Code], patterns: list[str]) -> dict[str, Code]:
    """The kernels that `patterns` name."""
    return {name: found[name] for name in found if any(fnmatchcase(name, pattern) for pattern in patterns)}


def complaints(found: Mapping[str, Code], figures: Mapping[str, Any], version: str | None) -> list[str]:
    """What is worse than the recorded figures, a line each. Another compiler's code is only checked for local
    memory."""
    lines = [f"{name}: {code.local} accesses to local memory, none are allowed"
             for name, code in found.items() if code.local]  # fmt: skip
    if version != figures["compiler"]:
        return lines
    known, present = figures["kernels"], hot(found, figures["hot"])
    lines += [f"{name}: has figures, but is gone" for name in known if name not in present]
    lines += [f"{name}: is hot, and has no figures" for name in present if name not in known]
    for name in known.keys() & present.keys():
        lines += [f"{name}: {complaint}" for complaint in _compared(present[name], known[name])]
    return sorted(lines)


def _compared(code: Code, recorded: Mapping[str, int]) -> Iterator[str]:
    for figure in ("registers", "instructions"):
        now, before = getattr(code, figure), recorded[figure]
        if now > MARGIN * before:
            yield f"{now} {figure}, recorded are {before}"
    for figure in ("wide_loads", "wide_stores"):
        if recorded[figure] and not getattr(code, figure):
            yield f"no {figure.replace('_', ' ')} of 16 bytes, recorded are {recorded[figure]}"


def read_figures() -> dict[str, Any]:
    """`compiler`, `hot` (patterns of names) and `kernels`."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text())
    return figures


def record() -> None:
    """Write the figures of the hot kernels as they are compiled now."""
    figures = read_figures()
    present = hot(kernels(build()), figures["hot"])
    figures |= {"compiler": compiler(), "kernels": {name: asdict(code) for name, code in present.items()}}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    for name, code in present.items():
        print(f"{name}: {code}")


def main(arguments: list[str]) -> None:
    if arguments not in (["--build"], ["--record"]):
        sys.exit("usage: python tests/kernels/cuda_code.py --build | --record")
    if compiler() is None:
        print("no nvcc in PATH: the machine code of the kernels for CUDA is not looked at here")
    elif arguments == ["--record"]:
        record()
    else:
        print(f"the kernels for CUDA, as they are looked at: {build().relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])

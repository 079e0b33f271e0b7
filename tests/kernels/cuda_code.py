"""nvcc's machine code for the CUDA kernels: registers, stack, wide accesses, instructions.

The figures of the hot kernels are kept in `csrc/figures.json`, with instructions a coordinate of DynamiQ's
hot paths (`hot_paths`). `python tests/kernels/cuda_code.py --build` compiles the library to inspect, in a
folder that is kept: this takes minutes at first, and no time until the sources or nvcc change. `--paths`
prints the table of hot paths, `--record` writes the figures anew. cuobjdump and nvdisasm come with CUDA's
toolkit, or by `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`.
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

import hot_paths

ROOT = Path(__file__).parents[2]

FIGURES = ROOT / "csrc" / "figures.json"

FOLDER = ROOT / "build" / "cuda_code"

SOURCES = ("CMakeLists.txt", "csrc/CMakeLists.txt", "csrc/include/**/*", "csrc/cuda/*")
"""The sources that the code depends on, besides nvcc."""

RECORD = "python tests/kernels/cuda_code.py --record"

ARCHITECTURES = ("sm_80", "sm_90")

MARGIN = 1.05
"""The factor by which a kernel's instructions may grow before the gate fails."""

PATH_MARGIN = 1.02
"""The factor by which the instructions per coordinate of a hot path may grow."""

LIMITS = {
    "compress": 39.5,
    "recompress": 47.0,
    "captured compress": 39.5,
    "captured recompress": 47.0,
    "plus compress": 78.0,
    "plus recompress": 85.5,
}
"""The most instructions per coordinate that a hot path may take on sm_90, whatever is on record."""

THREE_TO_FOUR_BITS = 1.15
"""The factor by which 3 bits may take more than 4, when something is compressed."""

_REGISTERS = 65536
_BLOCK = 256
_REGISTER_STEP = 8

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_RESOURCES = re.compile(r"Function (\S+):\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_FILE = re.compile(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+)_cu_[0-9a-f]+")


@dataclass(frozen=True)
class Code:
    """One kernel's machine code. `wide_loads` and `wide_stores` take 16 bytes each, `local` are accesses to
    local memory, where spilled registers go, `stack` the bytes that a thread has there."""

    registers: int
    stack: int
    instructions: int
    wide_loads: int
    wide_stores: int
    local: int

    @property
    def blocks(self) -> int:
        """The blocks of 256 threads that fit into a multiprocessor's registers, which are given out in
        eights."""
        return _REGISTERS // (_BLOCK * -(-self.registers // _REGISTER_STEP) * _REGISTER_STEP)


@dataclass(frozen=True)
class Found:
    """A library's code for one architecture."""

    kernels: dict[str, Code]
    paths: hot_paths.Table


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
    """The library for `ARCHITECTURES` alone, compiled unless it has been. Needs nvcc, cmake and ninja."""
    found = built()
    if found is not None:
        return found
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    architectures = ";".join(f"{name.removeprefix('sm_')}-real" for name in ARCHITECTURES)
    environment = {**os.environ, "CUDAARCHS": architectures, "PATH": programs}
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


def code_of(library: Path, architecture: str) -> Found:
    """The code of every kernel, by `<file>.cu <function and template arguments>`, and the hot paths."""
    listings = dict(_functions(_dump(library, architecture, "-sass")))
    resources = {
        name: (int(registers), int(stack))
        for name, registers, stack, *_ in _RESOURCES.findall(_dump(library, architecture, "-res-usage"))
    }
    names = {readable(symbol): symbol for symbol in sorted(listings)}
    found = {name: _code(listings[symbol], *resources[symbol]) for name, symbol in sorted(names.items())}
    return Found(found, hot_paths.table_of({name: listings[symbol] for name, symbol in names.items()}))


def _dump(library: Path, architecture: str, *what: str) -> str:
    known = tools()
    assert known is not None, "needs cuobjdump and nvdisasm"
    command = [known["cuobjdump"], *what, "-arch", architecture, str(library)]
    environment = {**os.environ, "NVDISASM_PATH": str(Path(known["nvdisasm"]).parent)}
    environment["PATH"] = f"{Path(known['nvdisasm']).parent}{os.pathsep}{environment.get('PATH', '')}"
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def _functions(listing: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"\n\s*Function : ", listing)[1:]:
        name, _, body = part.partition("\n")
        yield name.strip(), body


def _code(body: str, registers: int, stack: int) -> Code:
    operations = Counter(name for name in _INSTRUCTION.findall(body) if name != "NOP")

    def count(kind: str, part: str = "") -> int:
        return sum(n for name, n in operations.items() if name.split(".")[0] == kind and part in name)

    return Code(
        registers,
        stack,
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


def complaints(found: Found, architecture: str, figures: Mapping[str, Any], version: str | None) -> list[str]:
    """Complaints about figures worse than the recorded ones, a line each. Another compiler's code is only
    checked for local memory."""
    lines = [f"{name}: {code.local} accesses to local memory, none are allowed"
             for name, code in found.kernels.items() if code.local]  # fmt: skip
    lines += [f"{name}: a stack of {code.stack} bytes, none is allowed"
              for name, code in found.kernels.items() if code.stack]  # fmt: skip
    if version == figures["compiler"]:
        known, present = figures["kernels"][architecture], hot(found.kernels, figures["hot"])
        lines += [f"{name}: has figures, but is gone" for name in known if name not in present]
        lines += [f"{name}: is hot, and has no figures" for name in present if name not in known]
        for name in known.keys() & present.keys():
            lines += [f"{name}: {complaint}" for complaint in _compared(present[name], Code(**known[name]))]
        lines += _longer_paths(found.paths, figures["paths"][architecture])
        lines += _beyond_limits(found.paths) if architecture == ARCHITECTURES[-1] else []
    return [f"{architecture} {line}" for line in sorted(lines)]


def _compared(code: Code, recorded: Code) -> Iterator[str]:
    if code.blocks < recorded.blocks:
        yield (f"{code.registers} registers leave room for {code.blocks} blocks, the recorded "
               f"{recorded.registers} for {recorded.blocks}")  # fmt: skip
    if code.instructions > MARGIN * recorded.instructions:
        yield f"{code.instructions} instructions, recorded are {recorded.instructions}"
    for figure in ("wide_loads", "wide_stores"):
        before = getattr(recorded, figure)
        if before and not getattr(code, figure):
            yield f"no {figure.replace('_', ' ')} of 16 bytes, recorded are {before}"


def _longer_paths(paths: hot_paths.Table, recorded: hot_paths.Table) -> Iterator[str]:
    for operation, by_dtype in recorded.items():
        for dtype, by_width in by_dtype.items():
            for width, before in by_width.items():
                now = paths[operation][dtype][width]
                if now > PATH_MARGIN * before:
                    yield f"{operation} {dtype} to {width} bits: {now} a coordinate, recorded are {before}"


def _beyond_limits(paths: hot_paths.Table) -> Iterator[str]:
    for operation, limit in LIMITS.items():
        for dtype, by_width in paths[operation].items():
            for width, now in by_width.items():
                if now > limit:
                    yield f"{operation} {dtype} to {width} bits: {now} a coordinate, the limit is {limit}"
            if by_width["3"] > THREE_TO_FOUR_BITS * by_width["4"]:
                yield (f"{operation} {dtype}: {by_width['3']} a coordinate to 3 bits are more than "
                       f"{THREE_TO_FOUR_BITS} times the {by_width['4']} to 4")  # fmt: skip


def read_figures() -> dict[str, Any]:
    """`compiler`, `hot` (patterns of names), and by architecture `kernels` and `paths`."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text())
    return figures


def record() -> None:
    """Write the figures of the hot kernels as they are compiled now."""
    figures, library = read_figures(), build()
    found = {name: code_of(library, name) for name in ARCHITECTURES}
    figures["compiler"] = compiler()
    figures["kernels"] = {
        name: {kernel: asdict(code) for kernel, code in hot(each.kernels, figures["hot"]).items()}
        for name, each in found.items()
    }
    figures["paths"] = {name: each.paths for name, each in found.items()}
    FIGURES.write_text(_in_lines(figures))
    print_paths(library)


def _in_lines(figures: Mapping[str, Any]) -> str:
    """JSON with a line for each kernel and each path."""
    text = json.dumps(figures, indent=1)
    return re.sub(r"\{\s*(\"[^{}]*?)\s*\}", lambda match: "{" + " ".join(match[1].split()) + "}", text) + "\n"


def print_paths(library: Path) -> None:
    """Instructions a coordinate of the hot paths."""
    for architecture in ARCHITECTURES:
        print("\n".join(hot_paths.printed(architecture, code_of(library, architecture).paths)))


def main(arguments: list[str]) -> None:
    if arguments not in (["--build"], ["--paths"], ["--record"]):
        sys.exit("usage: python tests/kernels/cuda_code.py --build | --paths | --record")
    if compiler() is None:
        print("no nvcc in PATH: the machine code of the kernels for CUDA is not looked at here")
    elif arguments == ["--record"]:
        record()
    elif arguments == ["--paths"]:
        print_paths(build())
    else:
        print(f"the kernels for CUDA, as they are looked at: {build().relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The memory that the CUDA kernels' accesses move over what they need, counted by the emulation.

`csrc/emulation/accesses.h` says what is counted. `python tests/kernels/memory_accesses.py` prints the table
of every operation of `task=bench`, `--kernels` with a line for each of its kernels, `--record` writes
`csrc/accesses.json`, which the gate compares with (`test_memory_accesses.py`). Names of operations as
arguments (`'tfp.*'`) choose some.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import Library, library
from gradwire.harness.studies.bench.operation import Operation, all_operations

RECORD = Path(__file__).parents[2] / "csrc" / "accesses.json"

COMMAND = "python tests/kernels/memory_accesses.py --record"

NUMEL = 1 << 14
"""Coordinates of a bucket: some rows for each of the emulated device's warps."""

LONG = 1 << 16

SECTOR = 32

LIMIT = 1.15
"""The most sectors over the fewest possible, for an operation's loads and for its stores."""

MARGIN = 1.02
"""The factor by which a ratio may grow over the recorded one."""

_NEIGHBOURS = "a lane stores its own 16 coordinates or codes by itself"

EXCEPTIONS: dict[str, str] = {
    "dynamiq.*compress.[356] * stores": _NEIGHBOURS,
    "dynamiq_plus.*compress.mix * stores": _NEIGHBOURS,
    "dynamiq.plan* loads": "super-groups are looked up in the order of the plan",
    "edgc.* loads": "coordinates are sampled, some bytes of a sector",
    "mxfp.add.6 * stores": "a lane has 48 bytes, whole elements: 2.2 to 2.5 TB/s on an H100",
}
"""Operations whose loads or stores are above the limit, and why; what is recorded may not grow."""


@dataclass(frozen=True)
class Accesses:
    """The numbers of `Totals` in accesses.h; pairs are of loads and stores."""

    requests: tuple[int, int]
    touched: tuple[int, int]
    fewest: tuple[int, int]
    fetched: int
    new_bytes: int
    turns: tuple[int, int]
    fewest_turns: tuple[int, int]
    shared_turns: tuple[int, int]
    fewest_shared_turns: tuple[int, int]

    @classmethod
    def of(cls, numbers: list[int]) -> Accesses:
        pairs = [(numbers[i], numbers[i + 1]) for i in (0, 2, 4, 8, 10, 12, 14)]
        return cls(*pairs[:3], numbers[6], numbers[7], *pairs[3:])

    @property
    def ratios(self) -> dict[str, float]:
        """Sectors over the fewest possible of loads (what L1 holds is not loaded again; `uncached`: without
        it) and stores, and turns of the banks over the fewest possible: of both together in the L1 cache, and
        of loads and stores of shared memory."""
        return {
            "loads": _ratio(SECTOR * self.fetched, self.new_bytes),
            "loads uncached": _ratio(self.touched[0], self.fewest[0]),
            "stores": _ratio(self.touched[1], self.fewest[1]),
            "banks": _ratio(sum(self.turns), sum(self.fewest_turns)),
            "shared loads": _ratio(self.shared_turns[0], self.fewest_shared_turns[0]),
            "shared stores": _ratio(self.shared_turns[1], self.fewest_shared_turns[1]),
        }

    @property
    def conflicts(self) -> int:
        """Turns of banks beyond the fewest possible: what a device counts as conflicts."""
        fewest = sum(self.fewest_turns) + sum(self.fewest_shared_turns)
        return sum(self.turns) + sum(self.shared_turns) - fewest


def _ratio(found: int, least: int) -> float:
    return round(max(found / least, 1.0), 3) if least else 1.0


def counted(emulated: Library, run: Callable[[], object]) -> dict[int, list[int]]:
    """The totals of `run`, by the place of each kernel in the library; RuntimeError if none are counted."""
    handle, numbers = emulated.handle, (ctypes.c_uint64 * 16)()
    handle.gradwire_emulation_totals.restype = ctypes.c_uint64
    if handle.gradwire_emulation_count(1):
        raise RuntimeError("a library under AddressSanitizer does not count accesses")
    try:
        run()
        found = {}
        for kernel in range(handle.gradwire_emulation_kernels()):
            place = handle.gradwire_emulation_totals(kernel, numbers)
            found[place] = list(numbers)
        return found
    finally:
        handle.gradwire_emulation_count(0)


def summed(kernels: dict[int, list[int]]) -> Accesses:
    """All kernels' accesses together."""
    return Accesses.of([sum(each) for each in zip(*kernels.values(), strict=True)])


def cases() -> Iterator[tuple[str, Operation, torch.dtype]]:
    """Operations with kernels by `<name> <dtype>`."""
    for operation in all_operations():
        for dtype in operation.dtypes:
            yield f"{operation.name} {dtype}", operation, getattr(torch, dtype)


def numel_of(operation: Operation) -> int:
    """Coordinates of the bucket: the transform has a kernel that only long blocks need."""
    return LONG if operation.name.endswith((".largest", ".262144")) else NUMEL


def measure(emulated: Library, operation: Operation, dtype: torch.dtype) -> dict[int, list[int]]:
    """The totals of one call of the operation, by kernel; empty if it has none."""
    numel, generator = numel_of(operation), torch.Generator().manual_seed(0)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    with using_kernels("emulated"):
        case = operation.make(x.to(dtype))
        return counted(emulated, case.run)


def reason(name: str, part: str) -> str | None:
    """Why an operation's `part` may be above the limit, None if it may not."""
    for pattern, why in EXCEPTIONS.items():
        if fnmatchcase(f"{name} {part}", pattern):
            return why
    return None


def recorded() -> dict[str, dict[str, float]]:
    """The ratios on record, by `<operation> <dtype>`."""
    found: dict[str, dict[str, float]] = json.loads(RECORD.read_text())
    return found


def _names(path: Path) -> dict[int, str]:
    """Functions of the library by where they begin."""
    listing = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listing.splitlines():
        match = re.match(r"([0-9a-f]+) \w (.*)", line)
        if match:
            name = re.sub(r"\(anonymous namespace\)::|gradwire\w*::(emulated::)?|^void ", "", match[2])
            found[int(match[1], 16)] = name.partition("(gradwire")[0]
    return found


_HEADING = f"""{"sectors; turns of banks,":68}|{"":7}{"shared memory":>14}{"conflicts":>16}
{"":44}{"loads":>7}{"uncached":>9}{"stores":>7} |{"L1":>7}{"loads":>7}{"stores":>7}{"per coord.":>12}"""


def _main(arguments: list[str]) -> None:
    emulated = library("emulated")
    if emulated is None:
        sys.exit("the emulation of CUDA is not built: run `make emulation`")
    patterns = [argument for argument in arguments if not argument.startswith("--")]
    by_kernel = "--kernels" in arguments
    names = _names(emulated.path) if by_kernel else {}
    made: dict[str, dict[str, float]] = {}
    print(_HEADING)
    for name, operation, dtype in cases():
        if patterns and not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        kernels = measure(emulated, operation, dtype)
        if not kernels:
            continue
        lines = {name: summed(kernels)}
        if by_kernel:
            lines |= {f"  {names.get(place, '')}": Accesses.of(each) for place, each in kernels.items()}
        for label, accesses in lines.items():
            loads, uncached, stores, banks, shared_loads, shared_stores = accesses.ratios.values()
            print(
                f"{label:44.44}{loads:7.3f}{uncached:9.3f}{stores:7.3f} |{banks:7.3f}{shared_loads:7.3f}"
                f"{shared_stores:7.3f}{accesses.conflicts / numel_of(operation):10.4f}"
            )
        made[name] = summed(kernels).ratios
    if "--record" in arguments and not patterns:
        lines_of = (f" {json.dumps(name)}: {json.dumps(ratios)}" for name, ratios in sorted(made.items()))
        RECORD.write_text("{\n" + ",\n".join(lines_of) + "\n}\n")


if __name__ == "__main__":
    _main(sys.argv[1:])

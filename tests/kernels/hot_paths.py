"""Instructions that a warp issues for a coordinate on the hot paths of DynamiQ's kernels, from machine code.

Each of a kernel's widths has a loop of its own, in which a lane has sixteen coordinates of a row. The loop
branches: where coordinates are not at a multiple of 16 bytes, where a division meets subnormal numbers,
where a group is sent as zeros. Its hot path is the one from its first instruction to its last that moves
the most by 16 and 8 bytes at a time, among those the one with the most other loads and stores, since a warp
issues what any of its lanes does, and among those the shortest; it calls nothing, and takes no way that
only diverged warps take. With bfloat16 a bucket is half as long, so that its path moves 32 bytes less. A
loop within the loop is counted as one turn. Encoders prepare the rows of 16 turns beforehand (7 of DynamiQ+),
a lane for each row, in some 250 instructions with eight workers: one a coordinate, which is not counted.

Counted so, the kernels before these took 58, 56, 78 and 60 instructions to compress to 8, 4, 3 and 2 bits,
and 70, 68, 87 and 69 to recompress. All widths shared one loop, and options were branches of which the
shortest counts. A path through them by hand had 62, 61, 83 and 67, and 69, 68 and 74 at 8, 4 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_MOVED = ("LDG", "STG")
_ENDS = ("EXIT", "RET", "KILL", "BPT")

WIDTHS = (16, 8, 6, 5, 4, 3, 2, 1)
"""The order of the loops."""

PRINTED = (2, 3, 4, 8)
"""The widths that the paper sends, and 3 bits."""

LANE_COORDINATES = 16
_BFLOAT16_LESS = 2 * LANE_COORDINATES
"""The bytes that a lane moves less of a bucket of bfloat16."""

_ENCODE, _TABLES = "dynamiq.cu dynamiq_encode<", "gradwire_cuda::EncodingTables"
_PLUS = "gradwire_cuda::CodebookTables, gradwire::device::RoundKeys>"

OPERATIONS = {
    "compress": f"{_ENCODE}2, false, true, {_TABLES}, gradwire::device::RoundKeys>",
    "recompress": f"{_ENCODE}2, true, true, {_TABLES}, gradwire::device::RoundKeys>",
    "captured compress": f"{_ENCODE}2, false, true, {_TABLES}, gradwire_cuda::SharedKeys>",
    "captured recompress": f"{_ENCODE}2, true, true, {_TABLES}, gradwire_cuda::SharedKeys>",
    "plus compress": f"{_ENCODE}3, false, false, {_PLUS}",
    "plus recompress": f"{_ENCODE}3, true, false, {_PLUS}",
    "decompress": "dynamiq.cu dynamiq_decode<false, true>",
    "accumulate": "dynamiq.cu dynamiq_decode<true, true>",
}
"""The kernels of the paper's settings: geometric values, a byte for the scale of sixteen coordinates, rounded
at random, dithers among the workers. Captured ones find the round's key in memory. `plus` is DynamiQ+'s
encoders: distinct values, codebooks, options that are branches."""

Table = dict[str, dict[str, dict[str, float]]]
"""Instructions a coordinate by operation, dtype of the bucket and width."""


@dataclass(frozen=True)
class Instruction:
    """`target` is where a branch goes, None for others."""

    address: int
    predicated: bool
    name: str
    target: int | None

    @property
    def kind(self) -> str:
        return self.name.split(".")[0]


@dataclass
class Block:
    """Instructions that are run one after another, and the first addresses of the blocks that may follow."""

    first: int
    instructions: list[Instruction] = field(default_factory=list)
    following: tuple[int, ...] = ()

    def count(self, *kinds: str) -> int:
        return sum(instruction.kind in kinds for instruction in self.instructions)

    @property
    def wide(self) -> list[Instruction]:
        """Loads and stores of 16 and 8 bytes."""
        return [i for i in self.instructions if i.kind in _MOVED and re.search(r"\.(128|64)", i.name)]

    @property
    def moved(self) -> int:
        """The bytes that these move."""
        return sum(16 if ".128" in i.name else 8 for i in self.wide)


def instructions(listing: str) -> list[Instruction]:
    """The instructions of a function as cuobjdump prints them, without what only fills up. A branch that only
    diverged warps take (BRA.DIV) is none."""
    found = []
    for address, predicate, name, operands in _LINE.findall(listing):
        if name == "NOP":
            continue
        goal = re.search(r"0x([0-9a-f]+)\s*$", operands.strip()) if name in ("BRA", "BRA.U") else None
        conditional = bool(predicate) or (name.startswith("BRA") and "," in operands)
        found.append(Instruction(int(address, 16), conditional, name, int(goal[1], 16) if goal else None))
    return found


def blocks(code: Sequence[Instruction]) -> dict[int, Block]:
    """The function's blocks by first address."""
    starts = {code[0].address}
    for here, behind in zip(code, [*code[1:], None], strict=True):
        if here.target is not None:
            starts.add(here.target)
        if behind is not None and (here.target is not None or here.kind in _ENDS):
            starts.add(behind.address)
    found: dict[int, Block] = {}
    for position, here in enumerate(code):
        if here.address in starts:
            block = found[here.address] = Block(here.address)
        block.instructions.append(here)
        behind = code[position + 1].address if position + 1 < len(code) else None
        if behind is None or behind in starts:
            block.following = _following(here, behind)
    return found


def _following(last: Instruction, behind: int | None) -> tuple[int, ...]:
    through = () if behind is None else (behind,)
    if last.target is not None:
        return (last.target, *through) if last.predicated else (last.target,)
    return () if last.kind in _ENDS and not last.predicated else through


def loops(found: Mapping[int, Block]) -> list[set[int]]:
    """The outermost loops, in the order of their addresses: sets of first addresses of blocks."""
    components = [part for part in _components(found) if len(part) > 1 or _turns_alone(found, part)]
    return sorted(components, key=min)


def _turns_alone(found: Mapping[int, Block], part: set[int]) -> bool:
    return all(first in found[first].following for first in part)


def _components(found: Mapping[int, Block]) -> list[set[int]]:
    """Tarjan's strongly connected components, without recursion."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    parts: list[set[int]] = []
    for root in found:
        if root in number:
            continue
        work = [(root, iter(found[root].following))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for after in successors:
                if after not in found:
                    continue
                if after not in number:
                    number[after] = low[after] = len(number)
                    stack.append(after)
                    on_stack.add(after)
                    work.append((after, iter(found[after].following)))
                    break
                if after in on_stack:
                    low[node] = min(low[node], number[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    part = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        part.add(member)
                        if member == node:
                            break
                    parts.append(part)
    return parts


def paths(found: Mapping[int, Block], loop: set[int]) -> dict[int, int]:
    """Instructions of one turn of a loop, by how many bytes wide accesses move on the way: of the paths that
    call nothing those with the most other accesses, and of these the shortest."""
    header = _header(found, loop)
    best: dict[int, dict[int, tuple[int, int]]] = {}

    def from_here(first: int, above: frozenset[int]) -> dict[int, tuple[int, int]]:
        if first in best:
            return best[first]
        block, options = found[first], {}
        for after in block.following:
            if after == header:
                ways: Mapping[int, tuple[int, int]] = {0: (0, 0)}
            elif after in loop and after not in above:
                ways = from_here(after, above | {first})
            else:
                continue
            for moved, (others, length) in ways.items():
                _keep(options, moved, (others, length))
        own = block.count(*_MOVED) - len(block.wide)
        result = {}
        if not any(
            instruction.kind == "CALL" and not instruction.predicated for instruction in block.instructions
        ):
            for moved, (others, length) in options.items():
                result[moved + block.moved] = (others - own, length + len(block.instructions))
        best[first] = result
        return result

    return {moved: length for moved, (_, length) in from_here(header, frozenset()).items()}


def _keep(options: dict[int, tuple[int, int]], moved: int, way: tuple[int, int]) -> None:
    options[moved] = min(way, options.get(moved, way))


def widths_of(listing: str) -> dict[str, dict[str, float]]:
    """Instructions a coordinate of one of `OPERATIONS`, whose code this is, by dtype and width."""
    found = blocks(instructions(listing))
    rows = rows_of(found)
    assert len(rows) == len(WIDTHS), f"{len(rows)} loops over rows, one for each of {WIDTHS} is expected"
    table: dict[str, dict[str, float]] = {"float32": {}, "bfloat16": {}}
    for width, loop in sorted(zip(WIDTHS, rows, strict=True)):
        if width in PRINTED:
            lengths = paths(found, loop)
            most = max(lengths)
            table["float32"][str(width)] = round(lengths[most] / LANE_COORDINATES, 2)
            table["bfloat16"][str(width)] = round(lengths[most - _BFLOAT16_LESS] / LANE_COORDINATES, 2)
    return table


def rows_of(found: Mapping[int, Block]) -> list[set[int]]:
    """The loops over rows, in the order of their addresses: the outermost ones that have a group's scale, or
    those within, if there is one around all of them."""
    rows = [loop for loop in loops(found) if _reads_or_writes_scales(found, loop)]
    if len(rows) > 1:
        return rows
    within = {first: found[first] for loop in rows for first in loop - {_header(found, loop)}}
    return [loop for loop in loops(within) if _reads_or_writes_scales(found, loop)]


def _header(found: Mapping[int, Block], loop: set[int]) -> int:
    """The block at which a loop is entered."""
    return min(
        {after for first, block in found.items() if first not in loop for after in block.following} & loop
    )


def _reads_or_writes_scales(found: Mapping[int, Block], loop: set[int]) -> bool:
    """A loop over rows has the byte of a group's scale, and loads."""
    code = [instruction for first in loop for instruction in found[first].instructions]
    return any(i.kind in _MOVED and ".U8" in i.name for i in code) and any(i.kind == "LDG" for i in code)


def table_of(listings: Mapping[str, str]) -> Table:
    """The table of a library: its kernels' code by name."""
    return {operation: widths_of(listings[name]) for operation, name in OPERATIONS.items()}


def printed(architecture: str, table: Table) -> Iterator[str]:
    """The table as lines."""
    yield f"{architecture:22}{'bucket':10}" + "".join(f"{f'{width} bits':>9}" for width in PRINTED)
    for operation, by_dtype in table.items():
        for dtype, by_width in by_dtype.items():
            yield f"{operation:22}{dtype:10}" + "".join(f"{by_width[str(width)]:9.2f}" for width in PRINTED)

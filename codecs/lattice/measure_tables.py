"""Makes `tables`, the bits of Gaussian super-groups: `python -m gradwire.codecs.lattice.measure_tables`.

Every entry is a mean over the same pseudo-random super-groups of `SEED`, scaled to its variance and
rounded once at random, so that neighbouring entries differ by little else than the variance. Bits never
fall as variances rise: where the draw says so, an entry is as large as the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gradwire.codecs.lattice.codes import SlotCode
from gradwire.codecs.lattice.logarithms import UNITS
from gradwire.codecs.lattice.packed import Packed
from gradwire.codecs.lattice.prediction import HIGHEST, LOWEST, PARTS, SPACING
from gradwire.codecs.lattice.rice import Rice
from gradwire.codecs.options.dynamiq import SUPER_GROUP

SEED, SUPER_GROUPS = 0, 2048

TABLES: tuple[tuple[str, SlotCode], ...] = (("RICE", Rice()), ("PACKED", Packed()))

PER_LINE = 12


def variances() -> list[int]:
    """log2 of the variances of a table's entries, relative to D², in units."""
    return list(range(LOWEST, HIGHEST + 1, SPACING))


def lengths(code: SlotCode, variance: int, seed: int = SEED, super_groups: int = SUPER_GROUPS) -> Tensor:
    """Bits of pseudo-random super-groups of this variance, (super-groups,) int64."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(super_groups, SUPER_GROUP, generator=generator, dtype=torch.float64, device="cpu")
    uniform = torch.rand(super_groups, SUPER_GROUP, generator=generator, dtype=torch.float64, device="cpu")
    scale: float = 2.0 ** (variance / UNITS / 2)
    return code.lengths((normal * scale + uniform).floor().to(torch.int64))


def measured(code: SlotCode) -> list[int]:
    """The entries of a code's table, in parts of a bit."""
    found = [0]
    for variance in variances():
        mean = float(lengths(code, variance).to(torch.float64).mean())
        found.append(max(found[-1], round(PARTS * mean)))
    return found[1:]


def as_text(name: str, entries: Sequence[int]) -> str:
    """A table as lines of a Python file."""
    rows = [
        " ".join(map(str, entries[first : first + PER_LINE])) for first in range(0, len(entries), PER_LINE)
    ]
    body = "\n".join(f"    {row}" for row in rows)
    return f'{name} = _table("""\n{body}\n""")\n'


HEADER = f'''"""Mean bits of Gaussian super-groups in each code, in 1/{PARTS} bits, made by `measure_tables`.

Entries are for variances from 2^{LOWEST // UNITS} to 2^{HIGHEST // UNITS} times D²,
half an octave apart; the seed is {SEED}.
"""

from __future__ import annotations


def _table(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


'''

if __name__ == "__main__":
    path = Path(__file__).with_name("tables.py")
    path.write_text(HEADER + "\n".join(as_text(name, measured(code)) for name, code in TABLES))

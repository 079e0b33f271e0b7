"""Networks of a table's figures in words: what all have in common stands once, then what sets them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OTHERS = "others"
"""The name of the rows or columns that are more than half of all and share a network."""

SEPARATOR = ", "
"""Stands between the parts of a network's description: `modelled, 100 Mbit/s, 5 µs`."""


def in_common_and_apart(networks: Mapping[str, Sequence[str]]) -> list[str]:
    """The networks of rows or columns, by their names: `modelled, 5 µs`, then `A100: 100 Gbit/s` and so on.

    Those of one network stand together. Rows without any network are left out.
    """
    found = {name: _parts(texts) for name, texts in networks.items() if texts}
    if not found:
        return []
    common = [part for part in next(iter(found.values())) if all(part in parts for parts in found.values())]
    alike: dict[str, list[str]] = {}
    for name, parts in found.items():
        own = SEPARATOR.join(part for part in parts if part not in common)
        alike.setdefault(own, []).append(name)
    head = [SEPARATOR.join(common)] if common else []
    if len(alike) == 1:
        return head or list(alike)
    most = max(alike, key=lambda own: len(alike[own]))
    usual = [most] if len(alike[most]) > max(1, len(found) / 2) else []
    rest = [(_together(names, found), own) for own, names in alike.items() if own not in usual]
    rest += [(OTHERS, own) for own in usual]
    return head + [own if own == name else f"{name}: {own}" for name, own in rest if own]


def _parts(texts: Sequence[str]) -> list[str]:
    """The parts of one network's description; figures on several networks have no parts."""
    return texts[0].split(SEPARATOR) if len(texts) == 1 else [" and ".join(texts)]


def _together(names: Sequence[str], others: Mapping[str, object]) -> str:
    """A name for rows or columns with one network: their beginning up to a colon or the name that is in all,
    if no other has it; else all of their names."""
    begins = {name.rpartition(": ")[0] for name in names}
    within = [name for name in names if all(name in each for each in names)]
    for short in (*begins, *within) if len(begins) == 1 else within:
        if short and not any(
            each == short or each.startswith(f"{short}: ") for each in others.keys() - {*names}
        ):
            return short
    return " and ".join(names)

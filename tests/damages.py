"""Ways to damage a file, for every kind of file that is read back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[bytes, bytes], bytes]
"""Makes the damaged contents from the file's own and those of another file of its kind."""

DAMAGES: dict[str, Damage] = {
    "emptied": lambda own, other: b"",
    "cut": lambda own, other: own[: len(own) // 2],
    "a bit at the start": lambda own, other: flipped(own, 0),
    "a bit in the middle": lambda own, other: flipped(own, len(own) // 2),
    "a bit near the end": lambda own, other: flipped(own, len(own) - 3),
    "another's": lambda own, other: other,
    "a number": lambda own, other: b"5\n",
    "a list": lambda own, other: b"[1]\n",
    "an empty object": lambda own, other: b"{}\n",
    "undecodable": lambda own, other: b"\xff\xfe" + own,
    "brackets": lambda own, other: b"[" * 100_000,
    "a header of brackets": lambda own, other: (10**5).to_bytes(8, "little") + b"[" * 10**5,
    "aliases": lambda own, other: b"a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n",
    "a secret": lambda own, other: own + b"leak: ${oc.env:HOME}\n",
    "9 MB of one line": lambda own, other: b"x" * 9_000_000,
}


def flipped(content: bytes, at: int) -> bytes:
    """`content` with one bit of the byte at `at` flipped."""
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def one_line(text: str) -> None:
    """Asserts that `text` is one line that a user can read, with paths of some length in it."""
    assert text.isprintable(), text
    assert len(text) < 700, text


Exchange = Callable[[Path, Path], object]
"""Puts something else in the place of a file, perhaps a link to a file outside of its folder."""

EXCHANGES: dict[str, Exchange] = {
    "deleted": lambda path, outside: None,
    "a link out of the folder": lambda path, outside: path.symlink_to(outside),
    "a link to the environment": lambda path, outside: path.symlink_to("/proc/self/environ"),
    "a link to a file without an end": lambda path, outside: path.symlink_to("/proc/kmsg"),
    "a link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path, outside: path.symlink_to(path.name),
    "a pipe": lambda path, outside: os.mkfifo(path),
    "a folder": lambda path, outside: path.mkdir(),
    "9 MB": lambda path, outside: path.write_bytes(b"x,y\n" * 2_300_000),
}


def exchange(path: Path, how: Exchange, outside: Path) -> None:
    """Removes the file at `path` and puts something else there."""
    path.unlink()
    how(path, outside)


def restore(path: Path, content: bytes) -> None:
    """Puts the file back, whatever is in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_bytes(content)

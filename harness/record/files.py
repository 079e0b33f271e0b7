"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def as_new_files(folder: Path) -> None:
    """Give the files in `folder` the permissions that new files have; safetensors are written for their owner
    alone."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        new = Path(temporary, "new")
        new.touch()
        mode = new.stat().st_mode & 0o777
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(mode)


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by a file holding `text`; a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

"""A temporary folder per launching process; those of launchers that were killed go with the next one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"gradwire-(\d+)-.*")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder outside the run directory, which may be on a full or slow disk; removed in the end."""
    _remove_orphans(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"gradwire-{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(parent: Path) -> None:
    """Remove this user's folders of processes that are no more: a killed launcher could not."""
    for path in parent.glob("gradwire-*-*"):
        match = _NAME.fullmatch(path.name)
        if match and path.stat().st_uid == os.getuid() and not Path(f"/proc/{match[1]}").exists():
            shutil.rmtree(path, ignore_errors=True)

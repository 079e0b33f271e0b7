"""A temporary folder for each launching process; the next launcher removes those of killed ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX, LOCK = "gradwire-ranks-", "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder outside the run directory, which may be on a full or slow disk; removed at the end."""
    _remove_orphans(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(parent: Path) -> None:
    """Removes this user's folders whose lock nobody holds: their launchers were killed."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # locked, just removed by another launcher, or just being made
            if path.stat().st_uid == os.getuid():
                with (path / LOCK).open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)

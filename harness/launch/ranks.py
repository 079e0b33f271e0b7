"""Starts the ranks of a local cluster on their network, and makes scratch folders that are removed with their
launcher."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.launch.processes import Supervision, run_processes
from gradwire.harness.launch.shaped_network import shaped_network
from gradwire.harness.launch.stop import StopRequest
from gradwire.harness.network.settings import NetworkConfig


@dataclass(frozen=True)
class LocalRanks:
    """The ranks of a local cluster on their network, which `directory` keeps a record of; `folder` is the
    scratch folder of their processes."""

    cluster: ClusterConfig
    network: NetworkConfig
    directory: Path
    folder: Path

    def run(
        self, target: Callable[..., None], arguments: Sequence[Any], stop: StopRequest | None = None
    ) -> str:
        """Runs `target(*arguments, entrances, rank)` in a process per worker until all have ended.

        `entrances` lead into a shaped network, which lasts as long as the processes; None on any other
        network. `stop` is as for `run_processes`, which raises WorkerError and whose result this returns.
        """
        os.environ["OMP_NUM_THREADS"] = "1"  # read by the children's thread pools as they load
        size = self.cluster.size
        with shaped_network(self.network, size, self.directory) as shaped:
            entrances = None if shaped is None else [shaped.entrance(rank) for rank in range(size)]
            supervision = Supervision(stop, shaped, self.cluster.hang_s)
            return run_processes(target, (*arguments, entrances), size, self.folder, supervision)


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
    """Removes this user's folders that are not locked: their launchers were killed."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # locked, just removed by another launcher, or just being made
            if path.stat().st_uid == os.getuid():
                with (path / LOCK).open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)

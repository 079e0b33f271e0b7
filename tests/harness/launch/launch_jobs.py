"""The processes of the launching tests; as a script, the parent process that a test sends signals to."""

from __future__ import annotations

import io
import os
import pdb
import signal
import sys
import time
from pathlib import Path
from typing import Any

from gradwire.harness.launch.processes import Supervision, run_processes
from gradwire.harness.launch.stop import stop_requests
from gradwire.harness.runtime.heartbeat import COMPLETE, beat


class LostPeerError(RuntimeError):
    """An error as a transport raises it, which names the rank that did not answer."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"lost rank {peer}")
        self.peer = peer


def arrive(folder: Path, size: int, rank: int) -> None:
    """Leave the process's id in `folder` and wait for the others': from here on all ranks run."""
    (folder / f"pid{rank}.part").write_text(str(os.getpid()))
    (folder / f"pid{rank}.part").rename(folder / f"pid{rank}")
    while len(list(folder.glob("pid?"))) < size:
        time.sleep(0.01)


def end_well(folder: Path, size: int, rank: int) -> None:
    arrive(folder, size, rank)


def wait_for_ever(folder: Path, size: int, rank: int) -> None:
    arrive(folder, size, rank)
    time.sleep(600)


def raise_on_rank_1(folder: Path, size: int, rank: int) -> None:
    """Rank 1 fails; the other one loses it, and reports first."""
    arrive(folder, size, rank)
    if rank == 1:
        time.sleep(0.2)
        raise ValueError("the cause\nand more of it")
    raise LostPeerError(1)


def kill_rank_1(folder: Path, size: int, rank: int) -> None:
    arrive(folder, size, rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise LostPeerError(1)


def stop_rank_1(folder: Path, size: int, rank: int) -> None:
    """Rank 1 hangs, and the other rank reports it as lost."""
    arrive(folder, size, rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    raise LostPeerError(1)


def hang_together(folder: Path, size: int, rank: int) -> None:
    """Every rank waits, but for no other rank."""
    arrive(folder, size, rank)
    beat("training", 3)
    time.sleep(600)


def stop_together(folder: Path, size: int, rank: int) -> None:
    arrive(folder, size, rank)
    beat("evaluation", 3 + rank)
    os.kill(os.getpid(), signal.SIGSTOP)


def hang_on_rank_0_and_stop_rank_1(folder: Path, size: int, rank: int) -> None:
    """A rank waits as in a collective whose timeout has not yet passed."""
    (hang_together, stop_together)[rank](folder, size, rank)


def stop_rank_0_at_the_end(folder: Path, size: int, rank: int) -> None:
    """One rank still has something to write; the others have ended well."""
    arrive(folder, size, rank)
    if rank == 0:
        beat("ending", 5)
        os.kill(os.getpid(), signal.SIGSTOP)


def stop_rank_1_before_it_is_up(folder: Path, size: int, rank: int) -> None:
    """The other rank waits for it as the ranks of a cluster do."""
    from torch._C._distributed_c10d import FileStore

    from gradwire.harness.launch.worker import _await_peers

    arrive(folder, size, rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    store = FileStore(str(folder / "store"), size)
    store.set(f"up{rank}", "")
    _await_peers(store, size)


class Connecting:
    """The settings of a cluster and its network that a rank reads before it trains."""

    size, device, backend, timeout_s, name = 2, "cpu", "gloo", 1.0, "none"


def stop_rank_1_as_ranks_connect(folder: Path, size: int, rank: int) -> None:
    """Rank 1 is up, but the other rank never gets its address."""
    from gradwire.harness.launch import worker

    arrive(folder, size, rank)
    if rank == 1:
        worker.join_process_group = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
    settings: Any = Connecting()
    with worker.joined_process_group(settings, settings, rank, folder / "rendezvous"):
        time.sleep(600)


def take_a_signal_of_its_own(folder: Path, size: int, rank: int) -> None:
    """Rank 1 gets a signal that the launcher did not send; all ranks end well."""
    from gradwire.harness.launch.stop import stop_requests_of_rank

    stop_requests_of_rank()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGTERM)
        beat("training", 3)


def stop_in_start_up(folder: Path, size: int, rank: int) -> None:
    arrive(folder, size, rank)
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_rank_1_when_complete(folder: Path, size: int, rank: int) -> None:
    arrive(folder, size, rank)
    if rank == 0:
        beat(COMPLETE)
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def kill_rank_1_when_complete(folder: Path, size: int, rank: int) -> None:
    if rank == 0:
        beat(COMPLETE)
    arrive(folder, size, rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class SlowUser(io.StringIO):
    """A user who stays in the debugger for long before continuing."""

    def readline(self, *_: object) -> str:  # type: ignore[override]
        time.sleep(4)
        return "continue\n"


def debug_on_rank_1(folder: Path, size: int, rank: int) -> None:
    arrive(folder, size, rank)
    beat("training", 3)
    if rank == 1:
        pdb.Pdb(stdin=SlowUser(), stdout=io.StringIO()).set_trace()
        beat()
    (folder / f"went-on{rank}").touch()


if __name__ == "__main__":
    here = Path(sys.argv[1])
    with stop_requests() as request:
        run_processes(wait_for_ever, (here, 1), 1, here, Supervision(request))

"""Commands that start warm: forked from one process that has already imported what they need, in seconds.

For its test a warm command is like one that `subprocess.Popen` starts: a child with its own session, pipes,
environment and exit code. Its workers are forked as well, and it draws no plots of the run, which would take
longer than the rest. Tests that start cold, as users do, cover what differs.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

PRELOADED = [
    "gradwire.harness.data.tokenizer",
    "gradwire.harness.launch.launch",
    "gradwire.harness.report.plots",
    "gradwire.harness.tasks.front",
    "gradwire.harness.tasks.main",
    "gradwire.harness.trainer.parts",
    "matplotlib.backends.backend_agg",
    "tabulate",  # PyTorch would import it at exit; code executed then hides that Ctrl-C ended the process
    "torch.distributed.run",
    "transformers.models.gpt2.modeling_gpt2",
]
"""Modules that take seconds to import and start no thread."""

READ_LATE = {
    *("GRADWIRE_CACHE", "GRADWIRE_PLUGINS", "GRADWIRE_TEST_COMMAND", "PYTEST_CURRENT_TEST", "PYTHONPATH"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"),
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    *("HF_XET_HIGH_PERFORMANCE", "HF_HUB_ENABLE_HF_TRANSFER"),  # set where lm_eval is imported ...
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),  # ... and where it imports sklearn
    "TORCHINDUCTOR_CACHE_DIR",  # set where torch._inductor is imported
}
"""Variables that a command reads only as it runs. If any other one changes, it has to start cold."""

_PR_SET_CHILD_SUBREAPER = 36

_ENVIRONMENT = dict(os.environ)


RUN = Path(__file__).resolve().parent.parent / "run.py"
TORCHRUN = ["-m", "torch.distributed.run"]
MARK = "GRADWIRE_TEST_COMMAND"
"""The variable by which a test finds what its command has started; forked processes have it as their name."""


def run_command(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`run.py` with these arguments in the folder `cwd`, to its end."""
    return python(cwd, str(RUN), *arguments)


def python(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python <arguments>` in the folder `cwd`, to its end; warm where it can be."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command, pipe = [sys.executable, *arguments], subprocess.PIPE
    process = warm_or_cold(command, env=environment, cwd=cwd, stdout=pipe, stderr=pipe, text=True)
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def warm_or_cold(command: list[str], *, env: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
    """`subprocess.Popen(command, env=env, **options)`; warm where it is a script or torchrun."""
    known = command[1].endswith(".py") or command[1:3] == TORCHRUN
    warm = sys.platform == "linux" and known and _at_import(env) == _at_import(_ENVIRONMENT)
    return (WarmPopen if warm else subprocess.Popen)(command, env=env, **options)


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in READ_LATE and not name.startswith("SLURM_")
    }


class WarmPopen(subprocess.Popen[str]):
    """A forked child: `[sys.executable, script, *arguments]`, or torchrun, with or without `-u`."""

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        """In the place of fork and exec; Popen hands over the pipes' ends that it has made."""
        _, _, _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = rest
        out, err = (1 if c2pwrite < 0 else c2pwrite), (2 if errwrite < 0 else errwrite)
        try:
            self.pid = _server().fork(out, err, os.fspath(cwd or os.getcwd()), dict(env), list(args[1:]))
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


class _Server:
    """The process at the other end of a socket, from which commands are forked; it ends with this one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fork(self, out: int, err: int, cwd: str, environment: dict[str, str], arguments: list[str]) -> int:
        """The id of a child of this process that runs `arguments`, the leader of a new session."""
        _adopt_orphans(True)
        try:
            request = json.dumps([cwd, environment, arguments]).encode()
            socket.send_fds(self._socket, [len(request).to_bytes(8, "little")], [out, err])
            self._socket.sendall(request)
            return int.from_bytes(_received(self._socket, 8), "little")
        finally:
            _adopt_orphans(False)


@cache
def _server() -> _Server:
    own, theirs = socket.socketpair()
    command = [sys.executable, __file__, str(theirs.fileno())]
    subprocess.Popen(command, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()
    return _Server(own)


def _adopt_orphans(yes: bool) -> None:
    """Sets whether the orphans of this process's children become its own children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def _received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError("the process that commands are forked from has ended")
        found += part
    return found


def _serve(connection: socket.socket) -> list[str]:
    """Fork a command for each request; returns in the commands, with the script and its arguments."""
    while True:
        header, descriptors, _, _ = socket.recv_fds(connection, 8, 2)
        if not header:
            os._exit(0)
        header += _received(connection, 8 - len(header))
        request = _received(connection, int.from_bytes(header, "little"))
        answer, told = os.pipe()
        if (child := os.fork()) == 0:
            child = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == child:  # until it is an orphan, whom the test's process adopts
                time.sleep(0.001)
            os.close(answer)
            connection.close()
            arguments = _become(request, *descriptors)
            os.write(told, os.getpid().to_bytes(8, "little"))
            os.close(told)
            return arguments
        for descriptor in (told, *descriptors):
            os.close(descriptor)
        os.waitpid(child, 0)
        connection.sendall(os.read(answer, 8))
        os.close(answer)


def _become(request: bytes, out: int, err: int) -> list[str]:
    """Make this process the requested command; returns its script and arguments."""
    cwd, environment, arguments = json.loads(request)
    os.setsid()
    os.chdir(cwd)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.environ.clear()
    os.environ.update(environment)
    if mark := environment.get(MARK):
        Path("/proc/self/comm").write_text(process_name(mark))
    if arguments[0] == "-u":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        del arguments[0]
    before = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    first = cwd if arguments[0] == "-m" else str(Path(arguments[0]).parent)
    sys.path[:] = [first, *before, *sys.path]
    sys.argv = arguments[1:] if arguments[0] == "-m" else arguments
    result: list[str] = arguments
    return result


def process_name(mark: str) -> str:
    """The name of a forked process in /proc/<pid>/stat."""
    return mark[:15]


def _run(arguments: list[str]) -> None:
    """Runs a module or a script, as Python does with these arguments."""
    if arguments[0] == "-m":
        _fork_ranks()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def _fork_ranks() -> None:
    """Let torchrun fork its ranks from a copy of what it is now: soon it will have threads."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    global _server
    own, theirs = socket.socketpair()
    if os.fork() == 0:
        own.close()
        _run(_serve(theirs))
        sys.exit()
    theirs.close()
    ranks = _Server(own)
    _server = lambda: ranks  # type: ignore[assignment]  # noqa: E731
    subprocess_handler.Popen = WarmPopen


def _preload() -> None:
    import torch

    torch.set_num_threads(1)
    for name in PRELOADED:
        importlib.import_module(name)

    import gradwire
    from gradwire.harness.config.compose import compose
    from gradwire.harness.launch import processes
    from gradwire.harness.report import run_plots

    sys.path.append(str(Path(gradwire.__file__).parent / "harness" / "sweeper"))  # Hydra looks once
    compose(["size=tiny"])
    processes.get_context = lambda _: get_context("fork")  # type: ignore[attr-defined]
    run_plots.run_plots = lambda run: []
    gc.freeze()  # what is never looked at stays shared
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads where processes are to be forked from"


if __name__ == "__main__":
    given = set(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:] = [path for path in sys.path[1:] if path not in given]
    _preload()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))

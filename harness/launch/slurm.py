"""The environment of ranks that a launcher starts: torchrun, or srun.

SLURM's variables are translated into torchrun's once, before any code reads its rank. From then on a task of
srun is treated as a process of torchrun.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

from gradwire.harness.runtime.errors import ConfigError, shortened
from gradwire.harness.runtime.program import torchrun_target

SPECIAL_STEPS = 0xFFFFFFF0
"""Step numbers from here on are SLURM's own: a batch script, an interactive shell."""

PORTS = range(15000, 30000)
"""The range of the port on which rank 0 listens unless MASTER_PORT is set, below the ports that systems
assign automatically."""


def adopt_slurm_ranks(environment: MutableMapping[str, str] = os.environ) -> None:
    """Adds torchrun's variables to the environment of one of several tasks of srun; changes nothing
    otherwise.

    A shell of salloc, the script of sbatch and `srun --pty bash` are single processes, however many tasks the
    job may have. A launcher within a task (`srun torchrun ...`) has already set the variables. Raises
    ConfigError if a task's rank does not follow from SLURM's variables.
    """
    if "RANK" not in environment and tasks_of(environment) > 1:
        environment.update(ranks(environment))


def check_launched_ranks(environment: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError where the variables that a launcher gives its ranks hold anything but numbers."""
    if "RANK" not in environment:
        return
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        value = environment.get(name, "0")
        if not (value.isascii() and value.isdigit()):
            raise ConfigError(
                f"{name}={shortened(value)} in the environment: torchrun sets a whole number there; unset "
                f"{name} if no launcher started this process"
            )


def started_as_rank(command: str) -> str:
    """The message for a user who starts several ranks of a single-process task, or has a launcher's RANK left
    in the environment."""
    return f"RANK={os.environ['RANK']} is set, as by torchrun or srun; without them use env -u RANK {command}"


def tasks_of(environment: Mapping[str, str]) -> int:
    """The number of tasks in the srun step that started this process; 1 without one."""
    step = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID", ""))
    if "SLURM_PROCID" not in environment or not step.isdigit() or int(step) >= SPECIAL_STEPS:
        return 1
    tasks = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1"))
    return int(tasks) if tasks.isdigit() else 1


def ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables for a task of srun. Raises ConfigError."""
    rank, local, node = (_number(environment, f"SLURM_{name}") for name in ("PROCID", "LOCALID", "NODEID"))
    per_node = tasks_per_node(_text(environment, "TASKS_PER_NODE"))
    hosts = _text(environment, "NODELIST", "SLURM_JOB_NODELIST")
    world = tasks_of(environment)
    if sum(per_node) != world or not (node < len(per_node) and local < per_node[node] and rank < world):
        raise _unclear(
            f"task {rank} is the {local}th of node {node}, in {world} tasks as {per_node} on nodes"
        )
    job = int(re.sub(r"\D", "", environment.get("SLURM_JOB_ID", "")) or 0)
    step = int(environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID", "0")))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(per_node[node]),
        "MASTER_ADDR": environment.get("MASTER_ADDR")
        or ("127.0.0.1" if len(per_node) == 1 else first_host(hosts)),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(PORTS[(31 * job + step) % len(PORTS)]),
    }


def tasks_per_node(text: str) -> list[int]:
    """Expands `2(x3),1` to [2, 2, 2, 1]. Raises ConfigError."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if match is None:
            raise _unclear(f"{text!r} is not a list of tasks per node")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(nodes: str) -> str:
    """The first host of SLURM's list of hosts: `gpu07-ib` for `gpu[07-09,12]-ib,cpu1`. Raises ConfigError."""
    match = re.match(r"([\w.-]*)(?:\[(\d+)[^\]]*\])?([\w.-]*)", nodes)
    host = "" if match is None else f"{match[1]}{match[2] or ''}{match[3]}"
    if not host:
        raise _unclear(f"{nodes!r} is not a list of nodes")
    return host


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdigit():
        raise _unclear(f"{name}={text or 'nothing'}")
    return int(text)


def _text(environment: Mapping[str, str], name: str, otherwise: str = "") -> str:
    """The variable of the step, or else that of the job."""
    for known in (f"SLURM_STEP_{name}", f"SLURM_{name}", otherwise):
        if environment.get(known):
            return environment[known]
    raise _unclear(f"SLURM_STEP_{name} is missing")


def _unclear(what: str) -> ConfigError:
    return ConfigError(
        f"srun has started several tasks, and which of them this is cannot be determined ({what}); start one "
        "task per node with torchrun in it: srun --ntasks-per-node=1 torchrun --nnodes ... "
        f"{torchrun_target()} ..."
    )

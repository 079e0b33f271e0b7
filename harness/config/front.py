"""What `run.py` does before Hydra: refuse what cannot run, in one line, and keep ranks quiet."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig

from gradwire.harness.config.compose import VERSION_BASE, compose, conf_directory, parse, prepare
from gradwire.harness.config.errors import ConfigError, refuse
from gradwire.harness.config.explain import CONFIG_NAME
from gradwire.harness.config.validate import (
    ignored_keys,
    refused_as_config_error,
    task_of,
    validate,
    validate_task,
)
from gradwire.harness.launch.slurm import adopt_slurm_ranks
from gradwire.harness.record.directory import make_directory


def start() -> None:
    """Check the command line, then hand it to Hydra, which calls `run_task` or the sweeper."""
    try:
        adopt_slurm_ranks()
        prepare()
        check_command_line(sys.argv[1:])
    except ConfigError as error:
        refuse(error)
    if int(os.environ.get("RANK", "0")) > 0:
        sys.argv.append("hydra.run.dir=.")  # only rank 0 makes the run directory
    from gradwire.harness.tasks.main import run_task

    hydra.main(version_base=VERSION_BASE, config_path=str(conf_directory()), config_name=CONFIG_NAME)(
        run_task
    )()


def check_command_line(arguments: Sequence[str]) -> None:
    """Raise ConfigError for what cannot be composed, and, for a single run, for what cannot be run.

    The cells of a sweep are checked by the sweeper, all of them before the first one starts.
    """
    flags = get_args_parser().parse_args(list(arguments))
    if flags.help or flags.hydra_help or flags.info or flags.shell_completion or flags.config_dir:
        return
    single = [
        str(override.input_line) for override in parse(flags.overrides) if not override.is_sweep_override()
    ]
    config = compose(single, with_hydra=True)
    if flags.multirun or config.hydra.mode == RunMode.MULTIRUN:
        if "RANK" in os.environ:
            raise ConfigError(
                "a sweep starts its own workers and cannot run under torchrun; use: "
                f"python run.py {' '.join(arguments)}"
            )
        return
    if len(single) < len(flags.overrides):
        compose(flags.overrides)  # refuses the several values of an override
    if flags.cfg:
        return
    if task_of(config).trains:
        validate(config)
    else:
        _check_task(config, arguments, parse(flags.overrides))
    asked = config.hydra.run.dir
    rank_0 = os.environ.get("RANK", "0") == "0"
    if asked != "." and rank_0:  # Hydra makes it next, and would show a traceback
        refused_as_config_error(make_directory, Path(asked))


def _check_task(config: DictConfig, arguments: Sequence[str], overrides: Sequence[Override]) -> None:
    """Refuse what a task that trains nothing cannot do, or would not read."""
    task, name = task_of(config), config.task.name
    if "RANK" in os.environ:
        raise ConfigError(f"task={name} runs in one process; use: python run.py {' '.join(arguments)}")
    ignored = ignored_keys(task) - {"hydra"}
    for override in overrides:
        if override.key_or_group.partition(".")[0] in ignored:
            raise ConfigError(
                f"{override.input_line} has no effect on task={name}, which trains nothing; leave it out"
            )
    validate_task(config)

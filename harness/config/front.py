"""What `run.py` does before Hydra: refuse what cannot run, in one line, and keep ranks quiet."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig

from gradwire.harness.config.compose import (
    VERSION_BASE,
    compose,
    composed_hydra,
    conf_directory,
    meant,
    prepare,
)
from gradwire.harness.config.errors import ConfigError, refuse, shortened
from gradwire.harness.config.explain import CONFIG_NAME, plain
from gradwire.harness.config.manual import task_page
from gradwire.harness.config.overrides import parse, said
from gradwire.harness.config.validate import (
    ignored_keys,
    refused_as_config_error,
    task_of,
    validate,
    validate_task,
)
from gradwire.harness.launch.slurm import adopt_slurm_ranks
from gradwire.harness.record.directory import make_directory
from gradwire.harness.tasks.registry import TASKS

PRESETS = ("size", "experiment")
"""Groups that only set others: harmless where those are not read."""


def start() -> None:
    """Check the command line, then hand it to Hydra, which calls `run_task` or the sweeper."""
    try:
        adopt_slurm_ranks()
        prepare()
        sys.argv[1:] = arranged(sys.argv[1:])
        page = asked_page(sys.argv[1:])
        if page is None:
            check_command_line(sys.argv[1:])
    except ConfigError as error:
        refuse(error)
    if page is not None:
        print(page)
        return
    if int(os.environ.get("RANK", "0")) > 0:
        sys.argv.append("hydra.run.dir=.")  # only rank 0 makes the run directory
    from gradwire.harness.tasks.main import run_task

    hydra.main(version_base=VERSION_BASE, config_path=str(conf_directory()), config_name=CONFIG_NAME)(
        run_task
    )()


def arranged(arguments: Sequence[str]) -> list[str]:
    """Flags first, which Hydra's parser wants, and no override that chooses nothing."""
    overrides = [text for text in arguments if "=" in text and not text.startswith("-")]
    return [*(text for text in arguments if text not in overrides), *meant(overrides)]


def flags_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed flags, with `overrides`; ConfigError for one that does not exist."""

    def refused(message: str) -> NoReturn:
        assert message  # argparse's own words
        given = " ".join(text for text in arguments if text.startswith("-"))
        raise ConfigError(
            f"{shortened(given)}: unknown options; use key=value, --help, --multirun or --cfg job"
        )

    parser = get_args_parser()
    parser.error = refused  # type: ignore[method-assign]
    return parser.parse_args(list(arguments))


def asked_page(arguments: Sequence[str]) -> str | None:
    """The help page of the task that the command line names, or None where it asks for none."""
    flags = flags_of(arguments)
    chosen = [text.partition("=")[2] for text in flags.overrides if text.startswith("task=")]
    if not flags.help or not chosen:
        return None
    compose([f"task={chosen[-1]}"])  # refuses a task that there is not
    return task_page(conf_directory(), chosen[-1], TASKS[chosen[-1]])


def check_command_line(arguments: Sequence[str]) -> None:
    """Raise ConfigError for what cannot be composed, and, for a single run, for what cannot be run.

    The cells of a sweep are checked by the sweeper, all of them before the first one starts.
    """
    flags = flags_of(arguments)
    if flags.help or flags.hydra_help or flags.info or flags.shell_completion or flags.config_dir:
        return
    overrides = parse(flags.overrides)
    single = [str(override.input_line) for override in overrides if not override.is_sweep_override()]
    if flags.multirun or len(single) < len(overrides):
        choices = [text for text in single if "." not in text.partition("=")[0] or text.startswith("hydra.")]
        single = choices  # a value may belong to some of the sweep's choices only
    config, node = compose(single), composed_hydra(single)
    if flags.multirun or node.mode == RunMode.MULTIRUN:
        if "RANK" in os.environ:
            raise ConfigError(
                "a sweep starts its own workers and cannot run under torchrun; use: "
                f"python run.py {' '.join(arguments)}"
            )
        return
    if any(override.is_sweep_override() for override in overrides):
        compose(flags.overrides)  # refuses the several values of an override
    if flags.cfg:
        return
    if task_of(config).trains:
        validate(config)
    else:
        _check_task(config, arguments, overrides)
    asked = node.run.dir
    rank_0 = os.environ.get("RANK", "0") == "0"
    if asked != "." and rank_0:  # Hydra makes it next, and would show a traceback
        refused_as_config_error(make_directory, Path(asked))


def _check_task(config: DictConfig, arguments: Sequence[str], overrides: Sequence[Override]) -> None:
    """Refuse what a task that trains nothing cannot do, or would not read.

    A key with its default value changes nothing, a preset is noted: scripts give the same keys to all tasks.
    """
    task, name = task_of(config), config.task.name
    if "RANK" in os.environ:
        raise ConfigError(f"task={name} runs in one process; use: python run.py {' '.join(arguments)}")
    ignored = ignored_keys(task) - {"hydra"}
    usual = compose([f"task={name}"])
    for override in overrides:
        key = override.key_or_group
        if key.partition(".")[0] not in ignored:
            continue
        if key in PRESETS:
            print(f"note: {said(override)} has no effect on task={name}", file=sys.stderr)
        elif plain(config, key) != plain(usual, key):
            raise ConfigError(
                f"{said(override)} has no effect on task={name}, which trains nothing; leave it out"
            )
    validate_task(config)

"""Hydra's flags, which come before the overrides: each works or is refused in one line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from importlib import metadata

from gradwire.harness.config.misread import flag_advice
from gradwire.harness.config.own_files import FLAG
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, shortened
from gradwire.harness.runtime.program import program

REFUSED = {
    "config_path": "gradwire's own configuration cannot be replaced; add files of your own with "
    f"{FLAG} <folder>",
    "config_name": "there is one main configuration; choose group=choice, or add choices of your own with "
    f"{FLAG} <folder>",
    "experimental_rerun": "reads a pickle, which can run anything; repeat the run's own command, which "
    "resumes it, or use its config.yaml's values as key=value",
}
"""Flags that are not supported, and what to use instead."""

ONE_OF = ("run", "multirun", "cfg", "info", "shell_completion")
"""The flags that replace a run; only one of them can be given."""

OTHERS = {"torch": "torch", "Hydra": "hydra-core"}
"""Packages whose versions a report of a problem needs, besides Python's."""

SHELLS = ("bash", "fish", "zsh")

SWITCHES = (
    ("--help", "-h"),
    ("--hydra-help",),
    ("--version",),
    ("--resolve",),
    ("--run", "-r"),
    ("--multirun", "-m"),
    ("--shell-completion", "-sc"),
)

WITH_VALUE = (
    ("--package", "-p"),
    ("--config-path", "-cp"),
    ("--config-name", "-cn"),
    ("--config-dir", "-cd"),
    ("--experimental-rerun",),
)

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")

WITH_CFG = ("resolve", "package")
"""Flags that say how `--cfg` prints."""


def hydras_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.Action]]:
    """A parser of Hydra's flags, which raises argparse.ArgumentError, and the flags by name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("overrides", nargs="*")
    flags = [
        *(parser.add_argument(*names, action="store_true") for names in SWITCHES),
        *(parser.add_argument(*names) for names in WITH_VALUE),
        parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all")),
        parser.add_argument("--info", "-i", nargs="?", const="all", choices=INFO),
    ]
    return parser, {name: flag for flag in flags for name in flag.option_strings}


def version_text() -> str:
    """The line that `--version` prints."""
    others = (f"{name} {metadata.version(package)}" for name, package in OTHERS.items())
    return f"gradwire {metadata.version('gradwire')} ({', '.join(others)})"


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags, including whether `version` is requested, and `overrides`: all other arguments, in order.

    Raises ConfigError in one line for a flag that is unknown, lacks its value, or does not go with another.
    """
    parser, known = hydras_parser()
    given, overrides = _split(arguments, known)
    for text in (text for text in given if text.startswith("-")):
        name = text.partition("=")[0]
        if name not in known:  # argparse would take -parallel for -p arallel
            usable = [each for each, action in known.items() if action.dest not in REFUSED]
            following = next(iter(arguments[arguments.index(text) + 1 :]), "")
            raise ConfigError(
                f"{shortened(text)}: unknown options; use key=value, --help, --multirun or --cfg job"
                f"{flag_advice(text, following) or did_you_mean(name, usable)}"
            )
    try:
        read = parser.parse_args([text for text in given if text != "--version"])
    except argparse.ArgumentError as error:
        raise _mistaken(error, given, known) from None
    read.overrides, read.version = overrides, "--version" in given
    _check(read, given)
    return read


def for_hydra(flags: argparse.Namespace) -> list[str]:
    """The command line for Hydra, without the folder of the user's own files, which this package reads."""
    switches = ("help", "hydra_help", "resolve", "run", "multirun", "shell_completion")
    words = [f"--{name.replace('_', '-')}" for name in switches if getattr(flags, name)]
    values = {name: getattr(flags, name) for name in ("cfg", "package", "info")}
    words += [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [*words, *flags.overrides]


def _split(arguments: Sequence[str], known: Mapping[str, argparse.Action]) -> tuple[list[str], list[str]]:
    """(flags and their values, all else), because Hydra's parser requires flags first."""
    given: list[str] = []
    others: list[str] = []
    waiting: argparse.Action | None = None
    for text in arguments:
        takes = waiting is not None and (waiting.nargs is None or text in (waiting.choices or ()))
        flag = text.startswith("-")
        (given if flag or takes else others).append(text)
        waiting = known.get(text) if flag else None
    return given, others


def _mistaken(
    error: argparse.ArgumentError, given: Sequence[str], known: Mapping[str, argparse.Action]
) -> ConfigError:
    """The error for a flag that argparse rejects, with the value that the flag needs."""
    name = str(error.argument_name).partition("/")[0]
    choices = [str(choice) for choice in (known[name].choices or ())] if name in known else []
    if choices:
        allowed = f"choose one of {', '.join(choices)}"
    elif name in known and known[name].nargs == 0:
        allowed = "use it without a value"
    else:
        allowed = f"use it with a value: {name} <value>"
    return ConfigError(f"{shortened(' '.join(given))}: {allowed}")


def _check(flags: argparse.Namespace, given: Sequence[str]) -> None:
    for name, reason in REFUSED.items():
        if getattr(flags, name) is not None:
            flag = f"--{name.replace('_', '-')}={shortened(getattr(flags, name))}"
            raise ConfigError(f"{flag} cannot be used here: {reason}")
    if sum(text.partition("=")[0] in (FLAG, "-cd") for text in given) > 1:
        raise ConfigError(f"{FLAG}={shortened(flags.config_dir)}: is given more than once; use one folder")
    asked = [f"--{name.replace('_', '-')}" for name in ONE_OF if getattr(flags, name)]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} contradict each other; leave one of them out")
    for name in WITH_CFG:
        if getattr(flags, name) and flags.cfg is None:
            raise ConfigError(f"--{name} says how --cfg prints and has no effect alone; add --cfg job")
    if flags.shell_completion:
        _check_completion(flags.overrides)


def _check_completion(overrides: Sequence[str]) -> None:
    """`install=bash`, and what the shell itself then asks for."""
    word, _, shell = (overrides or [""])[0].partition("=")
    if len(overrides) != 1 or word not in ("install", "uninstall", "query") or shell not in SHELLS:
        given = shortened(" ".join(overrides)) or "nothing"
        raise ConfigError(
            f"--shell-completion with {given}: use install=<shell> or uninstall=<shell>, of "
            f'{", ".join(SHELLS)}, e.g. eval "$({program()} --shell-completion install=bash)"'
        )
    if word == "query" and "COMP_LINE" not in os.environ:
        raise ConfigError(f"--shell-completion {overrides[0]}: is for the shell; use install={shell}")

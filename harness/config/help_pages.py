"""The pages of `--help`: two screens, and one key away a group, a choice with its keys, a task, or
everything.

--help                 the short page
--help codec           all choices of a group, and the keys that they share
--help codec=dynamiq   a choice and its keys; the words may also stand before the flag
--help all             the long page
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from gradwire.codecs.options.common import CommonOptions
from gradwire.harness.config.compose import compose
from gradwire.harness.config.manual import (
    choice_lines,
    choices_of,
    describe,
    groups_of,
    key_lines,
    manual_page,
    task_page,
    template,
)
from gradwire.harness.config.own_files import own_choices
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.runtime.errors import ConfigError, did_you_mean, shortened
from gradwire.harness.runtime.program import SCRIPT, as_started

ALL = "all"

FIRST = {
    "codec": ("dynamiq", "dynamiq_plus", "bf16"),
    "dataset": ("auto", "embedded", "text"),
    "experiment": ("smoke", "debug", "sdp4bit"),
    "model": ("gpt2", "llama1b", "bert_large"),
    "network": ("none", "paced", "shaped", "simulated", "dynamiq_testbed"),
    "size": ("tiny", "small", "gpu", "paper"),
    "sweeps": ("demo", "quality", "dynamiq_table4"),
}
"""The choices that the short page names for groups with many, in this order."""

ORDER = ("size", "model", "dataset", "codec", "topology", "network", "cluster", "parallel")
"""The groups that come first on the short page."""

EXPLAINED = "codec"
"""The group whose first choices the short page explains."""


def help_page(conf: Path, words: Sequence[str]) -> str:
    """The page for the words given with `--help`. Raises ConfigError if there is none.

    A task always has its own page; among other choices and words, the last one counts.
    """
    tasks = [word.partition("=")[2] for word in words if word.startswith("task=")]
    if tasks:
        name = str(compose([f"task={tasks[-1]}"]).task.name)  # refuses a task that there is not
        return task_page(conf, name, TASKS[name])
    groups = groups_of(conf)
    asked = [word for word in words if "=" not in word or word.partition("=")[0] in groups]
    if not asked:
        return short_page(conf)
    group, _, choice = asked[-1].partition("=")
    if choice:
        return choice_page(conf, group, choice)
    if group == ALL:
        return manual_page(conf)
    if group not in groups:
        near = did_you_mean(group, [*groups, ALL]) or f"; choose one of {', '.join([*groups, ALL])}"
        raise ConfigError(f"--help {shortened(group)}: there is no such group{near}")
    return group_page(conf, group)


def short_page(conf: Path) -> str:
    """The short page: the most important information on two screens."""
    others = [group for group in groups_of(conf) if group not in (*ORDER, "task")]
    single = [group for group in others if len(choices_of(conf, group)) == 1]
    listed = [group for group in (*ORDER, *others) if group not in single]
    lines = [line for group in listed for line in _short_lines(conf, group)]
    lines.append(f"  {', '.join(single)} have one choice each, with keys: --help {single[-1]}")
    page = template(conf, "short").replace("${groups}", "\n".join(lines))
    return as_started(page.replace("${tasks}", "\n".join(_task_lines(conf)))).rstrip()


def group_page(conf: Path, group: str) -> str:
    """All choices of a group, and the keys that they have in common."""
    shared = list(_shared_keys(group))
    parts = [
        f"Choices ({group}=<choice>)\n" + "\n".join(choice_lines(conf, group)),
        "Keys of every choice (key=default)\n" + "\n".join(shared) if shared else "",
        f"What a choice is, with its keys: {SCRIPT} --help {group}={_named_first(conf, group)[0]}",
    ]
    return as_started("\n\n".join(part for part in parts if part))


def choice_page(conf: Path, group: str, choice: str) -> str:
    """The page of a choice: its purpose, the command that uses it, its keys with their defaults. Raises
    ConfigError for an unknown choice."""
    files = {path.stem: path for path in choices_of(conf, group)}
    config = compose([f"{group}={choice}"])
    what, command = (
        describe(files[choice]) if choice in files else ("a plug-in", f"{SCRIPT} {group}={choice}")
    )
    keys = list(_own_keys(group, config))
    parts = [
        f"{group}={choice}: {what}",
        f"Usage\n  {command}" if command else "",
        "Keys (key=default)\n" + "\n".join(keys) if keys else "",
        f"Its runs, and how long they take: {SCRIPT} task=plan{command.removeprefix(SCRIPT)}"
        if group == "sweeps"
        else f"All values that it leads to: {SCRIPT} {group}={choice} --cfg job",
        f"All choices: {SCRIPT} --help {group}",
    ]
    return as_started("\n\n".join(part for part in parts if part))


def _short_lines(conf: Path, group: str) -> Iterator[str]:
    """The first choices of a group, the number of others, and the user's own."""
    first, others = _named_first(conf, group), len(choices_of(conf, group)) - len(own_choices(group))
    label, more, own = f"{group}=", others - len(first), [path.stem for path in own_choices(group)]
    rest = [f"and {more} more: --help {group}"] if more else []
    if group == EXPLAINED:
        for name in first:
            yield f"  {label:<12}{name:<14}{describe(conf / group / f'{name}.yaml')[0]}"
            label = ""
        yield f"  {'':<12}{', '.join([*own, *rest])}"
    else:
        yield f"  {label:<12}{', '.join([*first, *own, *rest])}"


def _named_first(conf: Path, group: str) -> Sequence[str]:
    """The choices that the short page names: all of them if there are few."""
    return FIRST.get(group) or [path.stem for path in sorted((conf / group).glob("*.yaml"))]


def _task_lines(conf: Path) -> Iterator[str]:
    for path in choices_of(conf, "task"):
        yield f"  {path.stem:<12}{describe(path)[0]}"


def _shared_keys(group: str) -> Iterator[str]:
    schemas = group_schemas().get(group, {})
    if group == EXPLAINED:
        yield from key_lines(CommonOptions, f"{group}.")
    elif "base" in schemas and group not in ("task", "size", "model"):
        yield from key_lines(schemas["base"], f"{group}.", {"name"})


def _own_keys(group: str, config: DictConfig) -> Iterator[str]:
    """The keys of a choice with their values in `config`, references unresolved."""
    schema = OmegaConf.get_type(config[group]) if group in config else None
    if isinstance(schema, type) and dataclasses.is_dataclass(schema) and group != "size":
        values = cast(dict[str, Any], OmegaConf.to_container(config[group], resolve=False))
        yield from key_lines(schema, f"{group}.", {"name"}, values)

"""Help pages: the table of groups and choices in `python run.py --help`, and the page of one task.

They are read from the files' first lines and from the schemas.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from omegaconf import OmegaConf

from gradwire.codecs.fields import Rule, default_of, rules_with
from gradwire.codecs.plugins import ENTRY_POINTS, announced
from gradwire.codecs.wording import spelled
from gradwire.harness.config.own_files import own_choices
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import Task
from gradwire.harness.files.reading import UnusableFileError, printable, read_text
from gradwire.harness.files.structured import MOST_YAML
from gradwire.harness.runtime.program import SCRIPT, as_started

WIDTH = 100
"""Characters of a line."""

GROUPS_OF_TRAINING = ("train", "eval", "measure", "overlap", "parallel", "cluster", "dataset")
"""Groups whose keys do not depend on the choice."""

SETTINGS_ELSEWHERE = f"""\
${{model.recipe.<key>}} is the value of the chosen model's recipe. A size, a model and a choice of a group \
set some of these otherwise: --cfg job --resolve shows the values that hold. \
Other keys are those of the chosen codec, network, model or tracking: {SCRIPT} --help codec=thc."""

SAVED_GRADIENTS = """
A run keeps gradients with measure.save_gradients_at=[10,90], as
    outputs/<run>/gradients/step10.safetensors
An .npz of your own holds an array `gradients` of shape (workers, coordinates).
"""


def describe(path: Path) -> tuple[str, str]:
    """A configuration file's purpose and the command that uses it, from its first comment line.

    The line reads `# <what it is>: python run.py <overrides>`; a package directive may stand before it.
    """
    try:
        text = read_text(path, remedy="correct the file", most=MOST_YAML)
    except UnusableFileError:  # of the user's own: refused in one line where it is chosen
        return "", ""
    for line in text.splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            what, written, command = line.lstrip("# ").rpartition(f": {SCRIPT}")
            return printable(what or command), f"{SCRIPT}{command}" if written else ""
    return "", ""


def groups_of(conf: Path) -> list[str]:
    """The groups under `conf`."""
    return sorted(folder.name for folder in conf.iterdir() if folder.is_dir() and folder.name != "hydra")


def choices_of(conf: Path, group: str) -> list[Path]:
    """The files of a group's choices, those of the user's own last."""
    return [*sorted((conf / group).glob("*.yaml")), *own_choices(group)]


def choice_lines(conf: Path, group: str, label: str = "") -> Iterator[str]:
    """A line for each choice of a group, including those of plug-ins; the first follows `label`."""
    choices = choices_of(conf, group)
    width = max(12, *(len(path.stem) + 1 for path in choices))
    for index, path in enumerate(choices):
        yield f"  {label if index == 0 else '':<12}{path.stem:<{width}}{describe(path)[0]}"
    if group in ENTRY_POINTS:
        for name, point in sorted(announced(group).items()):
            yield f"  {'':<12}{name:<{width}}plug-in {point.value}"
        yield f"  {'':<12}{'<module>:<name>':<{width}}  a plug-in of your own, see docs/extending.md"


def choices_table(conf: Path) -> str:
    """Every group under `conf` with its choices, one line each."""
    lines = [line for group in groups_of(conf) for line in choice_lines(conf, group, f"{group}=")]
    return "\n".join(lines).replace("$", "$$")  # Hydra substitutes $NAME in what it prints


def register_manual(conf: Path) -> None:
    """Registers `${gradwire_choices:}` for the help template; repeating it has no effect."""
    OmegaConf.register_new_resolver("gradwire_choices", lambda: choices_table(conf), replace=True)


def manual_page(conf: Path) -> str:
    """The page that `--help all` prints: `conf/hydra/help/gradwire.yaml`, with all existing choices."""
    choices = choices_table(conf).replace("$$", "$")
    return as_started(template(conf)).replace("${gradwire_choices:}", choices.strip("\n")).rstrip()


def template(conf: Path, name: str = "gradwire") -> str:
    """The text of a page, with placeholders for text from other files."""
    return str(yaml.safe_load((conf / "hydra" / "help" / f"{name}.yaml").read_text())["template"])


def task_page(conf: Path, name: str, task: Task) -> str:
    """The page that `python run.py task=<name> --help` prints: what the task does, its keys, groups and
    examples."""
    what, command = describe(conf / "task" / f"{name}.yaml")
    keys, examples = list(_all_key_lines(conf, name, task)), _examples(conf, name)
    groups = [name for name in task.reads if name != "task" and (conf / name).is_dir()]
    if name == "train":
        read = SETTINGS_ELSEWHERE
    elif task.trains:
        read = f"It uses every group: {SCRIPT} task=train --help has their keys."
    else:
        read = f"It uses the group{'s' * (len(groups) > 1)} {', '.join(groups)}." if groups else ""
    parts = [
        f"task={name}: {what}",
        f"Usage\n  {command}",
        "Examples\n" + "\n".join(f"  {line}" for line in examples) if examples else "",
        "Keys (key=default)\n" + "\n".join(keys) if keys else "",
        read and textwrap.fill(read, WIDTH),
        SAVED_GRADIENTS.strip() if any(key.strip().startswith("gradients=") for key in keys) else "",
        "Results go to a folder in outputs/; hydra.run.dir=<folder> chooses another."
        if task.has_directory
        else "",
        f"All groups, choices and most used keys: {SCRIPT} --help all",
    ]
    return as_started("\n\n".join(part for part in parts if part))


def _all_key_lines(conf: Path, name: str, task: Task) -> Iterator[str]:
    """The root keys that a task reads, and those of the settings that every training run has."""
    yield from key_lines(task.config, leave_out=group_schemas())
    if name == "train":
        for group in GROUPS_OF_TRAINING:
            preset = _default_choice(conf, group)
            schemas = group_schemas()[group]
            schema = schemas["base"] if "base" in schemas else schemas[preset["name"]]
            yield from key_lines(schema, f"{group}.", {"name"}, preset)


def _default_choice(conf: Path, group: str) -> Mapping[str, Any]:
    """The values in the file of a group's default choice, references unresolved; empty if it has none."""
    listed = yaml.safe_load((conf / "config.yaml").read_text())["defaults"]
    choices = {key: choice for entry in listed if isinstance(entry, dict) for key, choice in entry.items()}
    if group not in choices:
        return {}
    return dict(yaml.safe_load((conf / group / f"{choices[group]}.yaml").read_text()))


def _examples(conf: Path, name: str) -> list[str]:
    """The lines of the manual that run this task; for training, the lines without a task."""
    lines = [line.strip() for line in template(conf).splitlines() if line.strip().startswith(SCRIPT)]
    own = [line for line in lines if f"task={name} " in line and "--help" not in line]
    return [line for line in lines if "task=" not in line] if name == "train" else own


def key_lines(
    schema: type,
    prefix: str = "",
    leave_out: Collection[str] = (),
    preset: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[str]:
    """`  replay.rounds=1` and, below it, its meaning and allowed values; fields in `leave_out` are not
    listed.

    The values of `preset` replace the schema's defaults.
    """
    texts, rules = help_of(schema), rules_with(schema, preset)
    for each in dataclasses.fields(schema):
        rule = rules[each.name]
        if each.name in leave_out:
            continue
        default = preset.get(each.name, default_of(each))
        if not isinstance(rule, Rule):
            below = default if isinstance(default, Mapping) else {}
            yield from key_lines(rule, f"{prefix}{each.name}.", preset=below)
            continue
        required = default is None and not rule.optional
        text = "<required>" if required else spelled(default).replace(", ", ",")
        yield f"  {prefix}{each.name}={text}"
        meaning = "; ".join(
            part for part in (texts.get(each.name, "").removesuffix("."), rule.allowed()) if part
        )
        yield textwrap.fill(meaning, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


@lru_cache(maxsize=256)
def help_of(schema: type) -> Mapping[str, str]:
    """Field to help, on one line each; inherited fields included, and '' where the source says nothing."""
    found: dict[str, str] = {}
    for owner in reversed(schema.__mro__):
        found |= _help_in(owner) if "__annotations__" in vars(owner) else {}
    return found


def _help_in(owner: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):  # made at run time, or without its source
        return {}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    comments = _comments(source)
    code = {line for node in tree.body for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    found = {}
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        parts = [comments[line] for line in lines if line in comments]
        above = node.lineno - 1
        while above in comments and above not in code:
            parts.insert(0, comments[above])
            above -= 1
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            parts.append(str(below.value.value))
        found[node.target.id] = " ".join(" ".join(parts).split())
    return found


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokens
        if token.type == tokenize.COMMENT and "noqa" not in token.string
    }

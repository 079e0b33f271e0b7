"""The choices of groups, and suggestions for unknown ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from gradwire.harness.config.aliases import choice_alias_of
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import closest, shortened

MOST_LISTED = 220
"""The largest number of characters of choices that a message lists."""

COMMON = (
    *("size", "codec", "dataset", "experiment", "model", "network", "parallel", "sweeps", "task"),
    "topology",
)
"""The groups that are chosen most."""

TEXT_FILES = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".bz2", ".xz", ".zst")


@cache
def choices_in(folder: Path) -> Mapping[str, Sequence[str]]:
    """Every group of the project's `folder` with its choices, sorted; without Hydra's own groups."""
    groups = [each for each in folder.iterdir() if each.is_dir() and each.name != "hydra"]
    return {each.name: sorted(file.stem for file in each.glob("*.yaml")) for each in sorted(groups)}


def groups_with(choice: str) -> list[str]:
    """The groups that have a choice of this name, ignoring case; those where it is most informative come
    first."""
    found = [group for group, names in choices_in(conf_directory()).items() if choice.lower() in names]
    return sorted(found, key=lambda group: (group not in COMMON, group))


def chosen_in(key: str, value: object) -> str | None:
    """A suggestion such as `sweeps=demo` for `sweep=demo`, if a root key was confused with a group of a
    similar name."""
    groups = choices_in(conf_directory())
    near = closest(key, groups)
    return next((f"{group}={value}" for group in near if str(value) in groups[group]), None)


def unknown_choice(group: str, value: object, choices: Sequence[str]) -> str:
    """The refusal of a choice that its group does not have, with a suggestion."""
    word = str(value)
    if not word:
        return f"{group}='' names nothing; choose one of {_listed(choices, word)}"
    others = [other for other in groups_with(word) if other != group]
    suggestion = _suggestion(group, word, choices)
    if others and suggestion is None:
        return (
            f"{group}={shortened(value)} is unknown; {word.lower()} is a choice of {others[0]}: use "
            f"{others[0]}={word.lower()}, or for {group} one of {_listed(choices, word)}"
        )
    own = _own_file(group, word)
    if own:
        return f"{group}={shortened(value)} is unknown; {own}"
    meant = f"; did you mean {group}={suggestion}?" if suggestion else ""
    return f"{group}={shortened(value)} is unknown; choose one of {_listed(choices, word)}{meant}"


def _suggestion(group: str, word: str, choices: Sequence[str]) -> str | None:
    """The choice for which a word is another name, or that looks similar."""
    stem = Path(word).stem if "/" in word or word.endswith((".yaml", ".yml")) else word
    alias = choice_alias_of(group, stem)
    plain = {name.replace("_", ""): name for name in choices}
    same = plain.get(stem.lower().replace("-", "").replace("_", ""))
    near = [] if _own_file(group, word) else closest(stem, choices)
    return next((name for name in (same, alias, *near) if name in choices), None)


def _own_file(group: str, word: str) -> str:
    """Advice for a word that names a user's own file; empty if it names none."""
    path = Path(word)
    if group == "dataset" and (path.suffix in TEXT_FILES or "/" in word):
        return f"for files of your own use dataset.path={shortened(word)}"
    if path.suffix == ".py" and group in ("codec", "topology", "parallel"):
        return f"for a class of your own use {group}=<module>:<class>, e.g. {group}={path.stem}:Mine"
    return ""


def _listed(choices: Iterable[str], word: str) -> str:
    """All choices or, if these are too many, those that look like `word`."""
    names = list(choices)
    text = ", ".join(names)
    if len(text) <= MOST_LISTED:
        return text
    near = closest(word, names, 5)
    shown = near or names
    while len(", ".join(shown)) > MOST_LISTED // 2:
        shown = shown[:-1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} others (--help lists them)"

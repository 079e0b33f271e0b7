"""Finds the configuration keys, Python names and files that the prose of the documentation mentions."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pages import ROOT
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.codecs.fields import check_fields
from gradwire.harness.config.compose import parse
from gradwire.harness.config.explain import OPTIONAL_GROUPS
from gradwire.harness.config.root_keys import own_defaults, root_rules, usual_defaults
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.runtime.conf import conf_directory

KEY = re.compile(r"(?P<group>[a-z_]+)(?P<path>(?:\.[a-z0-9_]+)*)(?:=(?P<value>.*))?")
FILE = re.compile(r"[\w.-]+(?:/[\w.*<>-]+)*/?")
FOLDERS = {"codecs", "conf", "csrc", "docs", "examples", "gradwire", "harness", "results", "sweeps", "tests"}
SUFFIXES = {
    "py",
    "yaml",
    "md",
    "json",
    "jsonl",
    "toml",
    "lock",
    "txt",
    "npz",
    "npy",
    "safetensors",
    "so",
    "h",
}
SUFFIXES |= {"cpp", "cu", "svg", "png", "pdf", "sh", "gz"}

HYDRA = {
    "run.dir",
    "sweep.dir",
    "sweeper.cases",
    "sweeper.common",
    "sweeper.needs",
    "mode",
    "launcher",
    "searchpath",
}
HYDRA |= {"launcher.timeout_min", "launcher.max_num_timeout", "launcher.n_jobs"}
"""Hydra's own keys that our pages may speak of."""


@cache
def fields() -> dict[str, dict[str, list[type]]]:
    """Group to dotted field to the schemas that have it, the root keys that tasks add included."""
    found: dict[str, dict[str, list[type]]] = {}
    for group, schemas in group_schemas().items():
        for schema in schemas.values():
            kind = schema if isinstance(schema, type) else type(schema)
            for path, owner in _paths(kind):
                found.setdefault(group, {}).setdefault(path, []).append(owner)
    for task in TASKS:
        for key, value in own_defaults(task).items():
            if isinstance(value, dict):
                found.setdefault(key, {}).update({field: [] for field in value})
    return found


@cache
def root_keys() -> set[str]:
    """Keys of the root that hold a value: `seed`, `resume`, and those that tasks add (`gradients`, `run`)."""
    given = [usual_defaults(), *map(own_defaults, TASKS)]
    return {key for one in given for key, value in one.items() if not isinstance(value, dict | list)}


@cache
def arguments() -> set[str]:
    """Arguments in Python: of `attach`, of codecs, and of what scripts use along with them."""
    functions = (
        *(gradwire.attach, gradwire.Synchronizer.load_state_dict, DistributedDataParallel),
        *(torch.load, torch.nn.Embedding),
    )
    own = {name for function in functions for name in inspect.signature(function).parameters}
    return own | set(fields()["codec"])


def _paths(schema: type, prefix: str = "") -> list[tuple[str, type]]:
    """Dotted names of a dataclass's fields, those of dataclasses inside it as well, with their owner."""
    found = []
    for field in dataclasses.fields(schema):
        found.append((prefix + field.name, schema))
        default: Any = field.default_factory if callable(field.default_factory) else None
        if isinstance(default, type) and dataclasses.is_dataclass(default):
            found += _paths(default, f"{prefix}{field.name}.")
    return found


def wrong_word(word: str, page: Path) -> str | None:
    """The fault of one word of inline code; None if it has none, or is neither a key, a name nor a file."""
    if word.startswith("gradwire."):
        return _wrong_name(word)
    found = KEY.fullmatch(word)
    if found is not None and (found["path"] or found["value"] is not None):
        last = found["path"].rpartition(".")[2]
        if found["value"] is not None or last not in SUFFIXES:
            return _wrong_key(found["group"], found["path"].lstrip("."), found["value"])
    if "/" in word and FILE.fullmatch(word) and word.split("/")[0] in FOLDERS:
        return None if _is_there(word, page) else f"{word}: no such file"
    return None


def _wrong_name(word: str) -> str | None:
    dotted = word.partition("(")[0].rstrip(".")
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return f"{dotted}: no such name"
    return None


def _wrong_key(group: str, path: str, value: str | None) -> str | None:
    if group == "hydra":
        return None if path in HYDRA else f"hydra.{path}: not one of the keys our pages speak of"
    if not path:
        return _wrong_choice(group, value or "")
    if group not in fields():
        return None
    if path not in fields()[group]:
        return f"{group}.{path}: no such key"
    bracketed = set("[{('\"") & set(value or "")
    for one in re.split(r"\|" if bracketed else r"[|,]", value or ""):
        fault = _wrong_value(group, path, one) if _is_value(one) else None
        if fault is not None:
            return fault
    return None


def _wrong_choice(group: str, value: str) -> str | None:
    folder = conf_directory() / group
    if group == "resume" and value not in ("", *root_rules("train")["resume"].choices):
        return f"resume={value}: no such choice"
    if not folder.is_dir():
        return (
            None if group in root_keys() | arguments() else f"{group}={value}: no such group, key or argument"
        )
    places = (folder, ROOT / "examples" / "conf" / group)
    known = {file.stem for place in places for file in place.glob("*.yaml")} | (
        {"null"} if group in OPTIONAL_GROUPS else set()
    )
    named = [choice for choice in re.split(r"[|,]", value) if _is_value(choice) and ":" not in choice]
    return next((f"{group}={choice}: no such choice" for choice in named if choice not in known), None)


def _wrong_value(group: str, path: str, value: str) -> str | None:
    """The first refusal if every schema with the field refuses the value, else None."""
    refusals = []
    for schema in fields()[group][path]:
        others = {field.name: _default(field) for field in dataclasses.fields(schema)}
        try:
            given = parse([f"key={value}"])[0].value()
            check_fields(schema, others | {path.rpartition(".")[2]: given}, group)
        except (ValueError, TypeError) as error:
            refusals.append(str(error))
        else:
            return None
    return refusals[0] if refusals else None


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_value(text: str) -> bool:
    """True for a value; false for a blank, a letter, a formula or another placeholder."""
    letter = len(text) == 1 and text.isalpha()
    return bool(text) and text.isascii() and not letter and not any(sign in text for sign in "<*")


def _is_there(word: str, page: Path) -> bool:
    if any(sign in word for sign in "<…"):
        return (ROOT / re.split("[<…]", word)[0]).parent.exists()
    return any(next(base.glob(word.rstrip("/")), None) is not None for base in (ROOT, page.parent))

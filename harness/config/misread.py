"""Suggestions for an argument that is not `key=value`, and for an unknown flag.

Only used when a command line is about to be refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gradwire.harness.config.aliases import ALIASES, alias_of
from gradwire.harness.config.choices import choices_in, groups_with
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import shortened
from gradwire.harness.runtime.program import program

QUOTES = "put the value in quotes where it holds spaces, commas, brackets or equal signs: 'key=\"a value\"'"

WORDS = "arguments are key=value, e.g. size=tiny; --help lists the keys"

MOST_BRACKETS = 100

CLOSING = {"[": "]", "{": "}", "(": ")"}

TYPOGRAPHIC = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "–": "-", "—": "--", "−": "-"})
"""The quotes and dashes that word processors and chats insert, with the plain ones."""

COMMANDS = ("python", "python3", "gradwire", "torchrun", "uv", "sudo")

PAGES = {"help": "--help", "list": "--help", "ls": "--help", "usage": "--help", "version": "--version"}
"""Words that ask for a page."""

RESUMING = ("resume", "continue", "restart", "resume_from_checkpoint", "resume_training", "restore", "load")

FLAGS = {
    "fp16": "train.precision=bf16",
    "bf16": "train.precision=bf16",
    "cpu": "cluster.device=cpu",
    "no_cuda": "cluster.device=cpu",
    "cuda": "cluster.device=cuda",
    "gpu": "cluster.device=cuda",
    "verbose": "train.log_every=1",
    "v": "train.log_every=1",
    "quiet": "train.log_every=1000",
    "q": "train.log_every=1000",
    "list": "--help",
    "dry_run": "task=plan sweeps=<name>, or --cfg job",
    "n": "task=plan sweeps=<name>, or --cfg job",
    "debug": "experiment=debug",
    "test": "experiment=smoke",
    "sweep": "sweeps=<name>, or --multirun",
    "wandb": "tracking=wandb",
    "local_rank": "torchrun, which says the rank by RANK and LOCAL_RANK",
}
"""Options of other programs that take no value, and the setting with the same effect here."""

_KEY = re.compile(r"[A-Za-z_][\w/]*(\.\w+)*")

Readable = Callable[[str], bool]


def override_advice(words: Sequence[str], number: int, readable: Readable) -> str:
    """Advice on `words[number]`, which cannot be read as key=value; `readable` tells whether a word can."""
    text = words[number]
    before, (after, beyond) = (words[number - 1] if number else ""), [*words[number + 1 :], "", ""][:2]
    if text.translate(TYPOGRAPHIC) != text:
        plain = re.sub("^[–—−]", "--", text).translate(TYPOGRAPHIC)
        return f"it holds typographic quotes or dashes; type plain ones: {shortened(plain)}"
    if text.rsplit("/", 1)[-1] in COMMANDS or text.endswith(".py"):
        return f"leave it out: {program()} is the command, and key=value follows"
    if text.lower() in PAGES:
        return f"did you mean {PAGES[text.lower()]}?"
    if "=" not in text.strip("="):
        return _spaced(text, before, after, beyond) or _word(text, after) or WORDS
    key, _, value = text.partition("=")
    return _value(key, value, readable) or QUOTES


def range_advice(text: str) -> str:
    """Advice for `key=range(0,x)`, which the grammar rejects for what stands in the brackets; else empty."""
    key, _, value = text.partition("=")
    if _KEY.fullmatch(key) is None or re.fullmatch(r"range\([^()]*\)", value) is None:
        return ""
    return f"range takes numbers: first, end and step; e.g. --multirun '{shortened(key)}=range(0,3)'"


def _spaced(text: str, before: str, after: str, beyond: str) -> str:
    """Advice for `key = value`, which the shell splits into three words, or two."""
    if text.startswith("=") or before.endswith("="):
        key, value = before.rstrip("="), text.strip("=") or after
    elif after.startswith("=") and _KEY.fullmatch(text):
        key, value = text, after.strip("=") or beyond
    else:
        return ""
    return f"write it without spaces: {shortened(key)}={shortened(value) or '<value>'}"


def _word(text: str, after: str) -> str:
    """Advice for a word alone: a choice, a key, a `key:value`."""
    groups, all_groups = groups_with(text), choices_in(conf_directory())
    if groups:
        chosen = " or ".join(f"{group}={text.lower()}" for group in groups)
        return f"it is a choice of {' and '.join(groups)}; did you mean {chosen}?"
    key, colon, value = text.partition(":")
    if colon and value and (key in all_groups or "." in key):
        return f"did you mean {shortened(key)}={shortened(value)}?"
    if not _KEY.fullmatch(text):
        return ""
    if after.isprintable() and after and not {*"=-"} & {*after[:1]} and "=" not in after:
        return f"did you mean {shortened(text, 60)}={shortened(after, 60)}?"
    if "." in text or text in (*all_groups, "seed", "resume", "plots"):
        return f"it has no value; write {shortened(text)}=<value>"
    alias = alias_of(text)
    return f"did you mean {alias}=<value>?" if alias else ""


def _value(key: str, value: str, readable: Readable) -> str:
    """Advice for `key=<text that the grammar does not accept>`."""
    if value.startswith("=") and readable(f"{key}={value.lstrip('=')}"):
        return f"did you mean {shortened(key)}={shortened(value.lstrip('='))}?"
    if value.endswith((",", ";")):
        plain = f"{shortened(key)}={shortened(value.rstrip(',;'))}"
        return f"spaces separate arguments, leave the {value[-1]} out at its end: {plain}"
    if re.fullmatch(r"<[^<>]*>", value):
        return f"{shortened(value)} stands for a value of your own; write that, without <>"
    if value.startswith("~"):
        return f"quote a path with ~, or use $HOME: '{shortened(key)}=\"{shortened(value)}\"'"
    if re.fullmatch(r"[+-]?\d+", value):
        return "it is a number of thousands of digits; choose a smaller one"
    if value.count("[") + value.count("{") > MOST_BRACKETS:
        return "it has too many brackets within brackets; choose a shorter value"
    if value.count('"') % 2 or value.count("'") % 2:
        return "a quote is missing; add it, or leave the other one out"
    return _brackets(key, value, readable)


def _brackets(key: str, value: str, readable: Readable) -> str:
    """Advice for brackets of which one is missing, or round ones around a list."""
    opened, missing = list[str](), list[str]()
    for sign in value:
        if sign in CLOSING:
            opened.append(sign)
        elif opened and sign == CLOSING[opened[-1]]:
            opened.pop()
        elif sign in CLOSING.values():
            missing.append(next(each for each, end in CLOSING.items() if end == sign))
    ends = "".join(CLOSING[sign] for sign in reversed(opened))
    if missing or ends:
        mended = f"{key}={''.join(reversed(missing))}{value}{ends}"
        written = f": write '{shortened(mended)}'" if readable(mended) else "; add it, or quote the value"
        return f"the bracket {' and '.join([*missing, *ends])} is missing{written}"
    squared = f"[{value[1:-1]}]"
    if value.startswith("(") and value.endswith(")") and readable(f"{key}={squared}"):
        return f"a list has square brackets: write '{shortened(key)}={shortened(squared)}'"
    return ""


def flag_advice(given: str, after: str) -> str:
    """Advice on an unknown flag, as `; …`; empty if there is no guess. `after` is the argument that follows
    it."""
    name, equals, value = given.lstrip("-").partition("=")
    plain = name.lower().replace("-", "_")
    if not equals and after and not after.startswith("-") and "=" not in after:
        value = after
    if plain in RESUMING and value.lower() not in ("auto", "force", "never"):
        return (
            "; leave it out: the same command resumes an interrupted run, and resume=auto, force or never "
            "says how"
        )
    if plain in FLAGS and (not value or plain in ("fp16", "bf16", "local_rank")):
        return f"; did you mean {FLAGS[plain]}?"
    roots = (*choices_in(conf_directory()), "seed", "resume", "plots")
    key = name if name in roots or name in ALIASES or "." in name else alias_of(plain)
    if key is None and plain in roots:
        key = plain
    if key is not None:
        return f"; did you mean {shortened(key)}={shortened(value) or '<value>'}?"
    return f"; did you mean {shortened(given.lstrip('-'))}?" if equals and value else ""

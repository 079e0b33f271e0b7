"""Whatever is typed is accepted, or refused in one line: the field, the value and what is allowed."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import Attempt, Fuzzer, all_keys
from tiny import TINY_MODEL

from gradwire.codecs.fields import Rule
from gradwire.harness.checkpoint.resume import open_run
from gradwire.harness.config.compose import compose
from gradwire.harness.config.overrides import parse
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.worker import train_virtual
from gradwire.harness.runtime.errors import ConfigError, shortened
from gradwire.harness.tasks.front import arranged, check_command_line
from gradwire.harness.trainer.parts import prepare

OVERRIDES = int(os.environ.get("GRADWIRE_FUZZ", "700"))
SEED = int(os.environ.get("GRADWIRE_FUZZ_SEED", "0"))

FOREIGN = re.compile(
    r"OmegaConf|antlr|ListConfig|DictConfig|NoneType|Traceback|Exception|[a-z]Error|object has no|Errno|"
    r"unexpected keyword|subscriptable|object_type|full_key|reference_type|struct\b|Union\[|positional|"
    r"could not be converted|nsupported|nterpolation|mismatched input|token recognition|usage:|<class '|"
    r"dataclass|ecursion|[Ll]exer|invalid literal|cannot unpack|__|not iterable|too large to convert|"
    r"ignored explicit|argument must|expected one"
)
"""Words of Python's, Hydra's, OmegaConf's and argparse's own messages."""

WHAT_IS_ALLOWED = re.compile(
    r"\b(choose|use|add|leave|set|write|did you mean|give|put|has|are|must|correct|install|needs?|find)\b"
)


NAMES = sorted({key.name for key in all_keys()})

WITHOUT_TEXT = {key.name for key in all_keys()} - {key.name for key in all_keys() if "text" in key.rule.kinds}

NEVER = ("nan", "inf", "-inf", "1e400", "-1e400", "[[]]", "{a:{b:[1]}}", "[{a:1}]", "''", "None", "maybe")
"""Values that no number, switch or list of these can have, whatever its rule says."""


def is_never_right(attempt: Attempt) -> bool:
    key, _, value = attempt.tried[0].partition("=")
    return key in WITHOUT_TEXT and value in NEVER


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    for name in ("HF_HUB_OFFLINE", "WANDB_MODE"):
        monkeypatch.setenv(name, "1" if name.startswith("HF") else "offline")
    yield tmp_path


def outcome(attempt: Attempt) -> str | None:
    """None if the command line could run, else its refusal; any other error is raised."""
    try:
        check_command_line(arranged(attempt.arguments))
    except ConfigError as error:
        return str(error)
    return None


def said_of(attempt: Attempt) -> list[str]:
    """The words by which a refusal may name the overrides and their values."""
    found = []
    for text in attempt.arguments:
        typed = text.partition("=")[2]
        found += [shortened(text), shortened(typed), typed[:10]]
        if not text.isprintable() or "=" not in text or len(text) > 1000:
            found.append(shortened(text)[:20])
        try:
            (override,) = parse([text])
            found.append(shortened(override.value()))
        except ConfigError:
            pass
    return [text for text in found if text]


def faults(attempt: Attempt, refusal: str) -> list[str]:
    """The faults of a refusal; if several settings conflict, it has to name their fields and values."""
    keys = [re.split(r"[=@]", text.lstrip("+~"), maxsplit=1)[0] for text in attempt.arguments]
    typed = any(shortened(key) in refusal or ascii(key)[1:20] in refusal for key in keys if key)
    another = any(f"{key}=" in refusal for key in NAMES)
    checks = {
        "is not one line": refusal.isprintable(),
        "is too long": len(refusal) <= 300,
        "has foreign words": not FOREIGN.search(without(refusal, attempt)),
        "does not say what is allowed": bool(WHAT_IS_ALLOWED.search(refusal)),
        "does not name the field": typed or another,
        "does not show the value": another or any(text in refusal for text in said_of(attempt)),
    }
    return [fault for fault, fine in checks.items() if not fine]


def without(refusal: str, attempt: Attempt) -> str:
    """A refusal without what it repeats of the command line."""
    for text in attempt.arguments:
        for part in (text, text.partition("=")[2]):
            if len(part) > 2:
                refusal = refusal.replace(shortened(part), "<>")  # does not join two words
    return refusal


def test_every_override_is_taken_or_refused_in_one_line(place: Path) -> None:
    wrong, taken, refused, tried = [], 0, 0, 0
    for attempt in Fuzzer(SEED).attempts(OVERRIDES):
        tried += len(attempt.tried)
        try:
            refusal = outcome(attempt)
        except BaseException as error:
            wrong.append(f"{attempt.arguments}: {type(error).__name__}: {error}"[:400])
            continue
        if refusal is None:
            taken += 1
            wrong += [f"{attempt.arguments} is taken"] if is_never_right(attempt) else []
            continue
        refused += 1
        wrong += [
            f"{[text[:80] for text in attempt.arguments]} {fault}: {refusal}"
            for fault in faults(attempt, refusal)
        ]
    print(f"{tried} overrides in {taken + refused} command lines: {taken} taken, {refused} refused")
    assert not wrong, f"{len(wrong)} of {tried}:\n" + "\n".join(wrong[:40])
    assert tried >= OVERRIDES
    assert min(taken, refused) > OVERRIDES / 20, "one-sided: it would not see much"


def test_every_key_has_bounds() -> None:
    """Without bounds any number would reach a run; the fuzzer draws a new key as soon as a schema has it."""
    for key in all_keys():
        for rule in (key.rule, key.rule.elements):
            if isinstance(rule, Rule) and not rule.choices and {"number", "whole number"} & {*rule.kinds}:
                assert abs(rule.low) < 1e31 and abs(rule.high) < 1e31, f"{key.name} has no bounds"


def test_a_planted_fault_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that lets a type error through, and a refusal without its value, are both found."""
    attempt = Attempt(("size=tiny",), ("train.steps=abc",))
    assert faults(attempt, "train.steps=abc: choose a whole number") == []
    assert faults(attempt, "invalid literal for int() with base 10: 'abc'")
    assert faults(attempt, "train.steps: choose a whole number from 1 to 3") == ["does not show the value"]
    assert faults(attempt, "train.steps=abc: choose\nanother") == ["is not one line"]
    assert "is too long" in faults(attempt, "train.steps=abc: choose " + "x" * 300)
    monkeypatch.setattr("gradwire.codecs.fields._is_allowed", lambda value, rule: True)
    found = 0
    for each in Fuzzer(SEED).attempts(150):
        try:
            refusal = outcome(each)
        except Exception:
            found += 1
            continue
        found += is_never_right(each) if refusal is None else bool(faults(each, refusal))
    assert found, "without the check of values nothing is found"


SAMPLED = 20

TINY = (
    *TINY_MODEL,
    *("cluster=virtual", "cluster.workers=2", "train.steps=1", "eval.max_sequences=4", "eval.micro_batch=4"),
    "train.save_checkpoint=false",
)


def test_a_sample_of_what_is_taken_runs_a_step(place: Path) -> None:
    """A real step runs, or is refused in one line, at the latest for its buckets; near the defaults it is
    short."""
    attempts = [each for each in Fuzzer(SEED + 1).attempts(1500) if each.moderate]
    random.Random(SEED).shuffle(attempts)
    ran = 0
    for number, attempt in enumerate(attempts):
        if ran == SAMPLED:
            break
        if attempt.chosen[0] != "size=tiny" or any("accumulation" in text for text in attempt.tried):
            continue
        overrides = [*TINY, *attempt.chosen[1:], *attempt.tried]
        try:
            config = validate(compose(overrides))
            prepare(config)  # what a run does before its workers start
        except ValueError:
            continue
        if config.cluster.name != "virtual" or config.train.steps is None or config.train.steps > 2:
            continue
        directory = place / f"run{number}"
        directory.mkdir()
        open_run(config, directory)
        try:
            train_virtual(config, directory)
        except ValueError as refusal:  # a codec sees how small DDP's buckets are only when they are there
            assert "buckets" in str(refusal) and "\n" not in str(refusal), overrides
            continue
        assert (directory / "summary.json").is_file(), overrides
        ran += 1
    assert ran == SAMPLED

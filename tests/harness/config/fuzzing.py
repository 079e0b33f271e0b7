"""Right and wrong overrides that a user might type, drawn from the schemas of all groups and tasks."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.codecs.fields import BOOLEAN, LIST, MAPPING, NUMBER, TEXT, WHOLE, Rule, rules_of
from gradwire.codecs.registry import codec_classes
from gradwire.harness.config.aliases import ALIASES
from gradwire.harness.config.root_keys import own_keys, root_rules
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.sweeps.cells import override_text

NUMBERS = (
    *(
        "nan",
        "inf",
        "-inf",
        "1e400",
        "-1e400",
        "1e-320",
        "1e23",
        "-0.0",
        "0",
        "-1",
        "1.5",
        "1e6",
        "1_000",
        "007",
    ),
    *("0x10", "99999999999999999999999", "9" * 4000, "9" * 5000, "1e", ".5", "5.", "+3", "--3"),
)
WORDS = (
    *(
        "",
        "''",
        '""',
        "' '",
        "null",
        "None",
        "true",
        "yes",
        "no",
        "~",
        "maybe",
        "ümlaut",
        "数",
        "💥",
        "a\u202eb",
    ),
    *("a\nb", "a\tb", "\x00", "../../x", "/etc/passwd", "~/x", "a b", "a,b", "a=b", "a:b", "a@b", "x" * 9000),
    *(
        "-x",
        "--multirun",
        "'",
        '"',
        "\\",
        "$",
        "$(id)",
        "`id`",
        "%s",
        "{0}",
        "#",
        "*",
        "?",
        "[",
        "]",
        "{",
        "}",
    ),
    *("(", ")", "a(b)", "a/b", "'it\\'s'", "???", "???x", "@", "a\\,b", "\ufeff", "\u200b"),
)
NESTED = (
    *("[]", "[[]]", "[[1]]", "[1,[2]]", "[null]", "[nan]", "['']", "{}", "{a:1}", "{a:{b:[1]}}", "[{a:1}]"),
    *("[" * 1500 + "]" * 1500, "[" * 9 + "]" * 9, "{a:" * 40 + "1" + "}" * 40, "[1,2", "[,]", "{a}"),
    *("[" + "1," * 3000 + "1]", "[1,1,1,1,1,1,1,1]"),
)
REFERENCES = (
    *("${nowhere}", "${train.lr}", "${model.family}", "${seed}", "${.x}", "${", "${}", "${oc.env:NOT_THERE}"),
    *("${foo:1}", "${oc.decode:1}", "${train}", "x${seed}y", "${${seed}}", "${model.${seed}}", "$${seed}"),
)
CALLS = (
    *(
        "range(1,3)",
        "choice(1,2)",
        "glob(*)",
        "interval(0,1)",
        "sort(3,2)",
        "shuffle(1,2)",
        "tag(a,1)",
        "int(3)",
    ),
    *("str(3)", "bool(1)", "float(nan)", "json_str([1])", "nope(1)", "int(x)", "1,2", "a,b,c"),
)
ODD_FORMS = (
    *(
        "~{key}",
        "~{key}={value}",
        "+{key}={value}",
        "++{key}={value}",
        "{key}@x={value}",
        "{key}@a:b={value}",
    ),
    *("{key}", "={value}", "{key}=", "={key}", "{key}.={value}", ".{key}={value}", "{key}.x={value}"),
    *(
        "{key}[0]={value}",
        "{key}.0={value}",
        "{key} ={value}",
        "{key}={value} ",
        "{key}=={value}",
        "{KEY}={value}",
    ),
    *(
        "/{key}={value}",
        "{key}/x={value}",
        "{key}:={value}",
        "-{key}={value}",
        "--{key}={value}",
        "{key}\n={value}",
    ),
)
OWN_FAMILY = (
    *("hydra.verbose=5", "hydra.verbose=true", "hydra.run.dir=null", "hydra.run.dir=[a]", "hydra.mode=x"),
    *("hydra/launcher=nope", "hydra.launcher=nope", "hydra=x", "hydra.job.name=a", "hydra/help=default"),
    *(
        "hydra.sweeper.cases={{}}",
        "hydra.output_subdir=x",
        "hydra/job_logging=default",
        "hydra.mode=MULTIRUN,RUN",
    ),
    *(
        "schema/codec=dynamiq",
        "schema=x",
        "sweeps=nope",
        "experiment=nope",
        "experiment=[smoke]",
        "sweeps=null",
    ),
    *("experiment=null", "size=null", "codec=[bf16]", "model=''", "config=x", "defaults=[]", "task=null"),
    *(
        "~experiment",
        "~codec",
        "+experiment=smoke",
        "network=none@x",
        "topology=RING",
        "codec=dynamiq codec=bf16",
    ),
)


@dataclass(frozen=True)
class Attempt:
    """One command line: the choices, and the overrides tried with them."""

    chosen: tuple[str, ...]
    tried: tuple[str, ...]
    moderate: bool = False
    """True if all overrides are near the defaults, so that a step takes no longer than theirs."""

    @property
    def arguments(self) -> list[str]:
        return [*self.chosen, *self.tried]


@dataclass(frozen=True)
class Key:
    """A key of the configuration, with the choices that have it."""

    name: str
    rule: Rule
    chosen: tuple[str, ...]
    default: Any


def all_keys() -> list[Key]:
    """Every key of every schema of every group and of every task."""
    keys = []
    for group, schemas in group_schemas().items():
        for choice, schema in schemas.items():
            if group == "task" or (group == "codec" and not _ours(choice)):
                continue
            chosen = ("size=tiny",) if choice == "base" else ("size=tiny", f"{group}={choice}")
            made = schema() if group == "model" else schema
            keys += _keys_of(made, f"{group}.", chosen)
    for task in TASKS:
        own = own_keys(task)
        required = [f"{name}=x" for name in own if name in ("run", "gradients")]
        found = _keys_of(TASKS[task].config, "", (f"task={task}", *required))
        keys += [key for key in found if key.name.partition(".")[0] in own]
    return [*keys, *(Key(name, rule, ("size=tiny",), None) for name, rule in root_rules("train").items())]


def _ours(codec: str) -> bool:
    """True for a codec of the project: other tests may have registered theirs in this process."""
    return codec_classes()[codec].__module__.startswith("gradwire.")


def _keys_of(schema: Any, prefix: str, chosen: tuple[str, ...]) -> Iterator[Key]:
    made = schema if not isinstance(schema, type) else None
    owner = schema if isinstance(schema, type) else type(schema)
    for each in dataclasses.fields(owner):
        rule = rules_of(owner)[each.name]
        if not isinstance(rule, Rule):
            yield from _keys_of(rule, f"{prefix}{each.name}.", chosen)
            continue
        default = getattr(made, each.name) if made is not None else each.default
        if default is dataclasses.MISSING:
            default = None
        others = tuple(text for text in chosen if not text.startswith(f"{prefix}{each.name}="))
        yield Key(prefix + each.name, rule, others, default)


class Fuzzer:
    """Draws attempts; the same seed draws the same ones from the same schemas."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._keys = all_keys()
        self._names = sorted({key.name for key in self._keys})

    def attempts(self, count: int) -> Iterator[Attempt]:
        """Attempts with at least `count` overrides tried: every key with a wrong value, then at random."""
        tried = 0
        for attempt in self._endless():
            yield attempt
            tried += len(attempt.tried)
            if tried >= count:
                return

    def _endless(self) -> Iterator[Attempt]:
        for text in OWN_FAMILY:
            yield Attempt(("size=tiny",), tuple(text.format().split(" ")))
        keys = list(self._keys)
        self._random.shuffle(keys)
        for key in keys:
            yield self._one(key, self._wrong_value(key.rule))
        makers: list[Callable[[], Attempt]] = [
            *[self._wrong] * 5,
            *(self._boundary, self._unknown, self._odd, self._several, self._moderate, self._moderate),
        ]
        while True:
            yield self._random.choice(makers)()

    def _key(self) -> Key:
        return self._random.choice(self._keys)

    def _one(self, key: Key, value: str, *, moderate: bool = False) -> Attempt:
        return Attempt(key.chosen, (f"{key.name}={value}",), moderate)

    def _wrong(self) -> Attempt:
        key = self._key()
        return self._one(key, self._wrong_value(key.rule))

    def _boundary(self) -> Attempt:
        key = self._key()
        return self._one(key, self._boundary_value(key.rule))

    def _moderate(self) -> Attempt:
        key = self._key()
        return self._one(key, self._good_value(key), moderate=True)

    def _several(self) -> Attempt:
        """Up to five keys of the same choices at once, one of them perhaps wrong."""
        first = self._key()
        alike = [key for key in self._keys if key.chosen == first.chosen]
        keys = self._random.sample(alike, min(len(alike), self._random.randint(2, 5)))
        values = [self._good_value(key) for key in keys]
        if wrong := self._random.random() < 0.3:
            values[0] = self._wrong_value(keys[0].rule)
        tried = tuple(f"{key.name}={value}" for key, value in zip(keys, values, strict=True))
        return Attempt(first.chosen, tried, not wrong)

    def _unknown(self) -> Attempt:
        """A key near a real one, or what another program calls it."""
        key = self._key()
        names = [name for names in ALIASES.values() for name in names]
        group = key.name.partition(".")[0]
        near = self._random.choice(
            [self._mistyped(key.name), self._random.choice(names), f"{group}.{self._random.choice(names)}"]
        )
        return Attempt(key.chosen, (f"{near}={self._good_value(key)}",))

    def _odd(self) -> Attempt:
        key = self._key()
        form = self._random.choice(ODD_FORMS)
        text = form.format(key=key.name, value=self._good_value(key), KEY=key.name.upper())
        return Attempt(key.chosen, (text,))

    def _mistyped(self, name: str) -> str:
        place = self._random.randrange(len(name))
        letter = self._random.choice("abcdefghijklmnopqrstuvwxyz_.1é")
        return self._random.choice(
            [
                name[:place] + name[place + 1 :],
                name[:place] + letter + name[place:],
                name[:place] + letter + name[place + 1 :],
                name + "s",
                name * 300,
            ]
        )

    def _wrong_value(self, rule: Rule) -> str:
        odd: Sequence[str] = self._random.choice([NUMBERS, WORDS, NESTED, REFERENCES, CALLS])
        return self._random.choice([self._boundary_value(rule), *self._random.choices(odd, k=4)])

    def _boundary_value(self, rule: Rule) -> str:
        each = rule.elements or rule if LIST in rule.kinds else rule
        values: list[Any] = [None, True, ""]
        if {WHOLE, NUMBER} & {*each.kinds} and not each.choices:
            step = 1 if WHOLE in each.kinds else max(abs(each.low), 1e-6) * 1e-3
            for bound in (each.low, each.high):
                if math.isfinite(bound):
                    whole = int(bound) if bound == int(bound) else bound
                    values += [whole, whole - step, whole + step, whole * 10, float(whole), str(whole)]
        values += [*each.choices, *(f"{choice}x" for choice in each.choices)]
        value = self._random.choice(values)
        return override_text([value] if LIST in rule.kinds else value)

    def _good_value(self, key: Key) -> str:
        rule = key.rule
        if rule.choices:
            return override_text(self._random.choice(rule.choices))
        if BOOLEAN in rule.kinds:
            return override_text(self._random.random() < 0.5)
        default = key.default
        if isinstance(default, int | float) and not isinstance(default, bool):
            scaled = default * self._random.choice([0.5, 1, 2]) if default else self._random.choice([0, 1])
            bounded = min(max(scaled, rule.low), rule.high)
            return override_text(int(bounded) if WHOLE in rule.kinds else float(bounded))
        if rule.optional and default is None:
            small = max(rule.low, 1) if math.isfinite(rule.low) else 1
            return override_text(
                self._random.choice([None, int(small)]) if {WHOLE, NUMBER} & {*rule.kinds} else None
            )
        if LIST in rule.kinds:
            each = rule.elements or Rule(kinds=(TEXT,))
            some = each.choices or ((max(int(each.low), 1),) if {WHOLE, NUMBER} & {*each.kinds} else ("a*",))
            return override_text(self._random.sample(list(some), min(len(some), 2)))
        if MAPPING in rule.kinds:
            return "{}"
        return override_text(default if isinstance(default, str) and default != "???" else "x1")

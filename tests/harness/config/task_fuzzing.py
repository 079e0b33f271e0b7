"""Command lines of every task, parallelism and sweep, with several odd values at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from fuzzing import Attempt, Fuzzer, Key, all_keys

from gradwire.codecs.fields import TEXT
from gradwire.harness.config.tasks import TASKS

TRAINING = (
    ("codec=edgc", "codec.window=50", "parallel=pipeline", "parallel.stages=2", "cluster.workers=4"),
    ("codec=aqgb", "topology=broadcast", "parallel=blocks", "cluster.workers=3"),
    ("codec=tfp", "topology=broadcast", "cluster=virtual", "network=simulated"),
    ("codec=all_to_all", "parallel=sharded", "cluster.workers=4"),
    ("codec=optimus_cc", "parallel=pipeline", "parallel.stages=2", "cluster.workers=4"),
    ("codec=mxfp8", "network=shaped", "cluster.workers=2"),
    ("codec=dynamiq", "parallel=sharded", "tracking=wandb"),
)
ON_CLOCK = ("cluster=virtual", "network=simulated")
PREDICTED = (
    *("task=predict", "model=gpt_1_3b", "cluster=virtual", "cluster.workers=8"),
    "predict.compute_tflops=100",
)
OTHERS = (
    ("task=allreduce", "codec=edgc", *ON_CLOCK, "cluster.workers=4", "allreduce.matrices=[[64,32],[7]]"),
    ("task=allreduce", "parallel=sharded", "codec=linear", "cluster.workers=2"),
    (*PREDICTED, "parallel=pipeline", "parallel.stages=4", "codec=optimus_cc"),
    (*PREDICTED, "parallel=sharded", "codec=all_to_all"),
    ("task=simulate", "network=simulated", "cluster.workers=16"),
    ("task=score", "checkpoint={folder}"),
    ("task=statistics", "gradients={gradients}"),
    ("task=replay", "gradients={gradients}", "codec=tfp"),
    ("task=bench",),
    ("task=overhead", "size=tiny"),
    ("task=retime", "run={folder}", "network=simulated"),
    ("task=timeline", "run={folder}"),
    ("task=sync", "run={folder}"),
    ("task=plan",),
    ("task=doctor",),
    ("task=weights", "name=minilm"),
)
"""Tasks to try. Those whose folder is no run are refused, as most mistyped ones are."""

SWEEPS = (
    ("--multirun", "codec=tfp,qsgd", "cluster=virtual"),
    ("--multirun", "task=simulate", "network=simulated", "cluster.workers=16"),
    ("--multirun", "task=replay", "gradients={gradients}", "codec=bf16,mxfp8"),
)

PLACES = (
    "fifo",
    "/dev/zero",
    "made_up",
    "folder",
    "missing",
    "huge",
    "link",
    "gradients",
    "/",
    "//",
    "~nobody",
)
"""The targets that a path may have, by their names in a folder that `make_places` has filled."""

SWEPT = (
    *("1,2", "range(0,3)", "range(0,10,0)", "range(0,10,-1)", "range(3,0,-1)", "range(0,1e300,1e-300)"),
    *("range(0,99999999999)", "range(1,2,0.25)", "choice(1,x)", "glob(*)", "glob(zz*)", "interval(0,1)"),
    *(
        "shuffle(range(0,3))",
        "sort(2,1)",
        "range(nan,1)",
        "range(0,inf)",
        "1," * 499,
        "[1,2],[3]",
        "null,true",
    ),
)


SUFFIXED = (
    "fifo.npz",
    "made_up.npz",
    "huge.npz",
    "fifo.safetensors",
    "made_up.safetensors",
    "huge.safetensors",
)
"""Some of these places with the suffixes of files of gradients."""


def make_places(folder: Path) -> None:
    """Puts everything that `PLACES` and `SUFFIXED` name into a folder."""
    for suffix in ("", ".npz", ".safetensors"):
        os.mkfifo(folder / f"fifo{suffix}")
        (folder / f"made_up{suffix}").symlink_to("/proc/self/environ")
        with (folder / f"huge{suffix}").open("wb") as file:
            file.truncate(2**40)
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("link")
    (folder / "gradients").write_text("{}\n")


def takes_text(key: Key) -> bool:
    """True if a key may be a path: any text that is no choice and no plain name."""
    return TEXT in key.rule.kinds and not key.rule.choices and not key.rule.plain


class TaskFuzzer(Fuzzer):
    """Draws attempts with two to six keys each, of what the task of the command line reads."""

    def __init__(self, seed: int, places: Mapping[str, str]) -> None:
        """`places` are the paths that command lines begin with, by their names in `OTHERS` and `SWEEPS`."""
        super().__init__(seed)
        self._lines = [
            tuple(text.format_map(places) for text in line)
            for line in (*(("size=tiny", *line) for line in TRAINING), *OTHERS, *SWEEPS)
        ]
        self._known = {line: self._of(line) for line in self._lines}

    def _of(self, line: tuple[str, ...]) -> list[Key]:
        """The keys that a command line reads with the choices it has made."""
        chosen = dict(text.split("=", 1) for text in line if "=" in text)
        task = chosen.get("task", "train")
        found: dict[str, Key] = {}
        for key in self._keys:
            group = key.name.partition(".")[0]
            needed = [text.split("=", 1) for text in key.chosen if not text.startswith("size=")]
            fits = all(
                chosen.get(name, "train" if name == "task" else None) == value or name in ("run", "gradients")
                for name, value in needed
            )
            if fits and group in TASKS[task].reads:
                found[key.name] = key
        return list(found.values())

    def _endless(self) -> Iterator[Attempt]:
        while True:
            for line in self._lines:
                keys = self._known[line]
                count = min(len(keys), self._random.randint(3, 7))
                odd = self._random.choice([0.0, 0.1, 0.3])
                tried = [self._text(key, line, odd) for key in self._random.sample(keys, count)]
                if "--multirun" in line:
                    tried.append(f"{self._random.choice(['seed', 'resume'])}={self._swept()}")
                    tried.append(self._random.choice(["sweep.plan=true", "sweep.minutes=5", "sweep.paper=x"]))
                if self._random.random() < odd / 2:
                    tried += self._unknown().tried
                yield Attempt(line, tuple(tried))

    def _text(self, key: Key, line: tuple[str, ...], odd: float) -> str:
        draw = self._random.random()
        if draw >= odd:
            return f"{key.name}={self._good_value(key)}"
        if takes_text(key):
            return f"{key.name}={self._random.choice(PLACES)}"
        if "--multirun" in line and draw < odd / 4:
            return f"{key.name}={self._swept()}"
        wrong = self._boundary_value if draw < odd / 2 else self._wrong_value
        return f"{key.name}={wrong(key.rule)}"

    def _swept(self) -> str:
        return self._random.choice(SWEPT)


def path_keys() -> list[Key]:
    """Every key that may be a path, with one of the choices that have it: by the type of its field, so that
    new ones are among them."""
    return list({key.name: key for key in all_keys() if takes_text(key)}.values())

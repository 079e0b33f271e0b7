"""Command lines that once ended in a traceback or another program's words, or were accepted though wrong."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from gradwire.codecs.fields import Rule, rules_of
from gradwire.codecs.options.common import NoOptions
from gradwire.harness.comm.settings import ClusterConfig, OverlapConfig
from gradwire.harness.config.compose import compose
from gradwire.harness.config.flags import hydras_parser
from gradwire.harness.config.help_pages import FIRST
from gradwire.harness.config.manual import help_of
from gradwire.harness.config.root_keys import own_defaults, own_keys, usual_defaults
from gradwire.harness.config.store import group_schemas
from gradwire.harness.config.tasks import TASKS
from gradwire.harness.library.options import AttachOptions, make_options
from gradwire.harness.network.settings import PacedConfig
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.tasks.front import arranged, asked_page, can_be_completed, check_command_line

REFUSED = [
    ("task=replay gradients=null", "gradients=null: choose a printable text"),
    ("task=replay gradients=3", "gradients=3: choose a printable text, or a list of them"),
    ("task=replay gradients=x.npz plots=maybe", "plots=maybe: choose true or false"),
    ("size=tiny sweep.minutes=5", "sweep.minutes=5 has no effect on a single run; add sweeps=<name>"),
    ("task=retime run=null", "run=null: choose a printable text"),
    ("task=retime run=[]", "run=[]: choose a printable text"),
    ("task=retime run=x retime.digest=x", "retime.digest=x: set automatically; leave it out"),
    ("task=sync run=[]", "run=[]: choose a printable text, or a list of them"),
    ("task=timeline run=[]", "run=[]: choose a printable text, or a list of them"),
    ("task=overhead overhead.blocks=abc", "overhead.blocks=abc: choose a whole number from 1"),
    ("codec.name=bf16", "choose it by codec=bf16"),
    ("codec.widths=[[1]]", "codec.widths=[[1]]: choose one or more of 1, 2, 3"),
    ("model.family=???", "model.family=??? is a missing value; choose one of bert"),
    ("model.family=${model.family}", "model.family=${model.family} is unknown; choose one of bert"),
    ("task.name=${task.name}", "task.name=${task.name} contradicts task=train"),
    ("train.steps=${train.lr}", "train.steps=${train.lr}: refers to a value that is not there"),
    ("train.steps=${oc.env:NOT_THERE}", "refers to a value that is not there"),
    ("hydra.verbose=5", "hydra.verbose=5 has no effect here"),
    ("hydra.launcher=nope", "hydra.launcher=nope has no effect here"),
    ("hydra/launcher=nope", "hydra/launcher=nope is unknown; choose one of basic"),
    ("--nope codec=bf16", "--nope: unknown options; use key=value"),
    ("~train.steps", "~train.steps: keys and groups cannot be removed"),
    ("+train.steps=3", "leave out the +"),
    ("codec=bf16 codec=fp32", "codec=bf16 and codec=fp32 contradict each other"),
    ("overlap=false", "overlap has keys of its own; set one of them; overlap has enabled"),
    ("overlap=null", "overlap has keys of its own"),
    ("model.vocab_size=1e23", "choose a whole number from 1 to 16777216"),
    ("model.context=" + "9" * 23, "choose a whole number from 1 to 16777216"),
    ("model.intermediate_size=1e23", "choose a whole number from 1"),
    ("parallel.bucket_cap_mb=1e30", "choose a number from 0.001 to 65536"),
    ("network=simulated network.rate_mbit=1e-320", "choose a number from 0.001 to 1000000000"),
    ("cluster.timeout_s=1e30", "choose a number from 0.1 to 604800"),
    ("cluster.timeout_s=1e-9", "choose a number from 0.1 to 604800"),
    ("overlap.buckets=100000", "choose a whole number from 1 to 64"),
    ("overlap.segments=1000000", "choose a whole number from 1 to 1024"),
    ("train.micro_batch=1000000000", "choose a whole number from 1 to 65536"),
    ("train.micro_batch=65536", "GiB, and this machine has"),
    ("model.num_layers=1000 model.hidden_size=131072", "parameters: training"),
    ("model.name=../../x", "model.name=../../x: choose a name of letters"),
    ("model.name=''", "model.name=: choose a name of letters"),
    ("model.name=a\nb", "has characters that cannot be printed"),
    ("model.name=a\u202eb", "has characters that cannot be printed"),
    ("train.warmup_steps=1000 train.steps=10", "train.warmup_steps=1000 is more than train.steps=10"),
    ("train.steps=10", "train.warmup_steps=20 is more than train.steps=10"),  # the preset's warm-up
    ("train.steps=10", "choose at most train.warmup_steps=10, or more steps"),
    ("measure.targets=[nan,-5,0]", "measure.targets=[nan, -5, 0]: choose a list, each a number above 0"),
    ("train.adam_epsilon=1e300", "choose a number from 1e-30 to 1"),
    ("train.clip_norm=1e-300", "choose a number from 1e-12 to"),
    ("train.weight_decay=1e30", "choose a number from 0 to 100"),
    ("train.epochs=1e300 train.steps=null", "choose a number from 1e-06 to 1000000"),
    ("dataset.revision=main", "dataset.revision=main has no effect with dataset=embedded"),
    (
        "dataset.path=x dataset.revision=main",
        "dataset.revision=main has no effect with dataset.path=x; leave one",
    ),
    ("model=gpt2 model.depths=[2]", "model.depths=[2] has no effect with model.family=gpt2; leave it out"),
    ("model=gpt2 model.bottleneck=false", "model.bottleneck=false has no effect with model.family=gpt2"),
    ("model=gpt2 model.path=x", "model.path=x has no effect with model.weights=random and model.family=gpt2"),
    ("model=resnet50 model.dropout=0.1", "model.dropout=0.1 has no effect with model.objective=image_cl"),
    ("model=resnet50 model.tokenizer=x", "model.tokenizer=x has no effect with model.objective=image_classi"),
    ("measure.trace=false measure.trace_mb=5", "measure.trace_mb=5 has no effect with measure.trace=false"),
    ("measure.spans=false measure.trace_every=5", "trace_every=5 has no effect with measure.spans=false"),
    ("measure.entropy_rates=[0.5]", "entropy_rates=[0.5] has no effect with measure.entropy_every=0"),
    ("codec=backend overlap.segments=4", "overlap.segments=4 has no effect with codec=backend; the backend"),
    ("dataset.configuration=x", "has no effect with dataset=embedded"),
    ("dataset.train_split=x", "has no effect with dataset=embedded"),
    ("dataset.text_field=x", "has no effect with dataset=embedded"),
    ("seed=" + "9" * 5000, "it is a number of thousands of digits; choose a smaller one"),
    ("train.lr=" + "9" * 4000, "<a number of 400"),
    ("k" * 5000 + "=1", "unknown key kkk"),
    ("train.steps=" + "[" * 1500 + "]" * 1500, "brackets within brackets"),
    ("train={steps:3}", "train={steps: 3} is unknown; choose one of default"),
    ("train.learning_rate=1", "did you mean train.lr?"),
    ("batch_size=8", "did you mean train.micro_batch?"),
    ("num_layers=2", "did you mean model.num_layers?"),
    ("output_dir=x", "did you mean hydra.run.dir?"),
    ("replay.rounds=2", "add task=replay, which has it"),
    ("codec.bits=abc", "codec.bits=abc: choose a number from 2.6875 to 8.6875 (2 to 8 bits of code"),
    ("codec.bits=abc codec.widths=[1,2]", "codec.bits=abc: choose a number from 1.6875 to 2.6875"),
    ("codec=uniform codec.bits=abc", "codec.bits=abc: choose 4.5 (4 bits of code"),
    ("codec=qsgd codec.bits=abc", "codec.bits=abc: choose a whole number from 2 to 16, or a list of two of"),
    ("codec=qsgd codec.bits=[8,2]", "codec.bits=[8, 2]: choose a whole number from 2 to 16, or a list"),
    ("codec=tfp codec.bits=abc", "codec.bits=abc: choose a whole number from 2 to 32"),
    ("codec=thc codec.table=nonuniform codec.granularity=x", "choose a whole number from 15 to 255"),
    (
        "network=simulated network.rate_changes={5:0.5}",
        "choose a list, each a list (e.g. [[60,0.5],[120,1]]: half the rate",
    ),
    ("network=simulated network.rate_changes=0.5", "network.rate_changes=0.5: choose a list, each a list"),
    ("network=simulated network.rate_changes=null", "network.rate_changes=null: choose a list"),
    ("model.name=..", "model.name=..: choose a name of letters"),
    ("model.name=a/b", "model.name=a/b: choose a name of letters"),
    ("model.name=/etc", "model.name=/etc: choose a name of letters"),
    ("model.name=" + "x" * 101, "of at most 100 characters"),
    ("hydra.run.dir=taken", "taken: File exists; choose a folder that can be written to"),
    ("hydra.run.dir=taken/below", "choose a folder that can be written to with hydra.run.dir="),
    ("hydra.run.dir=/proc/gradwire", "/proc/gradwire: No such file or directory; choose a folder"),
    ("hydra.run.dir=/", "hydra.run.dir=/: files of runs would lie among the system's"),
    ("hydra.sweep.dir=/../", "hydra.sweep.dir=/../: files of runs would lie among the system's"),
    ("network=simulated network.codec_times=" + "9" * 300, "255 of them between two slashes"),
    ("dataset.path=/" + "9" * 4000, "255 of them between two slashes"),
    ("codec=thc codec.bits=${train.lr}", "codec.bits=${train.lr}: refers to a value"),
    ("network=simulated network.nodes=1024", "use another codec; given are cluster.workers=1024"),
    ("hydra.searchpath=[file:///tmp]", "add your own files with --config-dir <folder>"),
]

FLAGS = [
    (
        "--config-path conf",
        "--config-path=conf cannot be used here",
        "add files of your own with --config-dir",
    ),
    ("-cn other", "--config-name=other cannot be used here", "--config-dir"),
    (
        "--experimental-rerun x.pickle",
        "reads a pickle, which can run anything",
        "repeat the run's own command",
    ),
    ("--config-dir nowhere", "--config-dir=nowhere: there is no such folder", "choose a folder"),
    ("--config-d own", "--config-d: unknown options", "did you mean --config-dir "),
    (
        "-parallel.bucket_cap_mb=25",
        "-parallel.bucket_cap_mb=25: unknown options",
        "did you mean parallel.bucket_cap_mb=25?",
    ),
    ("codec bf16", "codec: cannot be read as key=value", "did you mean codec=bf16?"),
    ("codec.bits=0", "codec.bits=0: choose a number from 2.6875 to 8.6875", ""),
    ("codec.bits=four", "codec.bits=four: choose a number from 2.6875 to 8.6875", ""),
    ("--cfg", "--cfg: choose one of job, hydra, all", ""),
    ("--cfg everything", "--cfg everything: choose one of job, hydra, all", ""),
    ("--cfg job --package nope", "--package=nope: unknown key; choose one of", "codec"),
    ("--package codec", "--package says how --cfg prints", "add --cfg job"),
    ("--resolve", "--resolve says how --cfg prints", "add --cfg job"),
    ("--info everything", "cannot be read as key=value", ""),
    ("--info=everything", "--info=everything: choose one of all, config, defaults", ""),
    ("--multirun --cfg job", "--multirun and --cfg contradict each other", "leave one of them out"),
    ("--run --multirun", "--run and --multirun contradict each other", ""),
    ("--help=codec", "--help=codec: use it without a value", ""),
    ("--shell-completion", "use install=<shell> or uninstall=<shell>, of bash, fish, zsh", ""),
    ("-sc install=dos", "--shell-completion with size=tiny install=dos", "bash, fish, zsh"),
    ("--hydra-help=1", "use it without a value", ""),
]
"""Hydra's flags as they are refused: what is wrong, and what to do."""

TAKEN = [
    *("experiment=null", "sweeps=null", "--multirun codec=bf16,fp32", "train.steps=${eval.every}"),
    *(
        "train.steps=30 train.steps=40",
        "++train.steps=30",
        "--cfg job codec.bits=4",
        "codec=topk tracking=none",
    ),
    *("--cfg job --package codec", "--cfg all --resolve", "--info", "--info defaults-tree", "--run", "-m"),
    *("--hydra-help", "network=simulated network.rate_changes=[[5,0.5]]", "hydra.run.dir=new/folder"),
]


def test_keys_of_the_root_have_the_defaults_and_help_of_their_fields() -> None:
    for task in TASKS:
        config = compose([f"task={task}"])
        for name, value in {**usual_defaults(), **own_defaults(task)}.items():
            assert OmegaConf.to_container(config, resolve=False)[name] == value, (task, name)
        said = help_of(TASKS[task].config)
        assert all(said.get(name) for name, rule in own_keys(task).items() if isinstance(rule, Rule))


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    Path("taken").touch()


def check(*arguments: str) -> None:
    check_command_line(arranged(arguments))


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[given[:40] for given, _ in REFUSED])
def test_refused(given: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check("size=tiny", *given.split(" "))
    message = str(refused.value)
    assert said in message
    assert message.isprintable() and len(message) <= 300


@pytest.mark.parametrize(("given", "said", "fix"), FLAGS, ids=[given for given, *_ in FLAGS])
def test_flags_refused(given: str, said: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check("size=tiny", *given.split(" "))
    message = str(refused.value)
    assert said in message and fix in message
    assert message.isprintable() and len(message) <= 300


def test_every_flag_of_hydras_is_in_a_table() -> None:
    """A new flag of a newer Hydra fails here before it can do something unseen."""
    ours, hydras = (
        {
            tuple(action.option_strings): (action.nargs, action.const, list(action.choices or []))
            for action in parser._actions
            if "--version" not in action.option_strings  # Hydra's own prints and exits
        }
        for parser in (hydras_parser()[0], get_args_parser())
    )
    assert ours == hydras
    flags = {name for action in get_args_parser()._actions for name in action.option_strings}
    tried = {word.partition("=")[0] for given, *_ in FLAGS for word in given.split(" ")}
    tried |= {word for given in TAKEN for word in given.split(" ")} | {"--version", "--help"}
    long = {
        action.option_strings[0]: set(action.option_strings)
        for action in get_args_parser()._actions[:]
        if action.option_strings
    }
    assert flags == set().union(*long.values())
    assert [name for name, names in long.items() if not names & tried] == []


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("python run.py codec=bf16 top", True),
        ("gradwire --multirun codec=bf16,fp32 ", True),
        ("python -m gradwire codec=nope top", False),
        ("gradwire --config-dir nowhere co", False),
        ("gradwire codec.bits=abc ", False),
        ("gradwire", True),
    ],
)
def test_the_shell_is_offered_nothing_behind_what_is_wrong(line: str, right: bool) -> None:
    assert can_be_completed(line) == right


def test_version() -> None:
    assert re.fullmatch(r"gradwire \S+ \(torch 2\.\S+, Hydra 1\.\S+\)", asked_page(["--version"]) or "")


@pytest.mark.parametrize(
    ("started", "command", "under_torchrun"),
    [
        ("run.py", "python run.py", "run.py"),
        ("/a/b/run.py", "python run.py", "run.py"),
        ("/a/bin/gradwire", "gradwire", "-m gradwire"),
        ("/a/site-packages/gradwire/__main__.py", "python -m gradwire", "-m gradwire"),
        ("-c", "python run.py", "run.py"),  # of a script in a checkout
    ],
)
def test_messages_say_how_it_was_started(
    started: str, command: str, under_torchrun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [started])
    page = asked_page(["--help"]) or ""
    assert f"\n  {command} size=tiny " in page
    assert f"torchrun --nproc-per-node 4 {under_torchrun} size=tiny" in page
    columns = {line.index("one run in a minute") for line in page.splitlines() if "one run in a" in line}
    columns |= {line.index("BF16 against") for line in page.splitlines() if "BF16 against DynamiQ" in line}
    assert len(columns) <= 2
    assert f"Usage\n  {command} task=replay" in (asked_page(["task=replay", "--help"]) or "")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError) as refused:
        check("size=tiny", "seed=0,1", "--multirun")
    assert str(refused.value).endswith(f"use env -u RANK {command} --multirun size=tiny seed=0,1")
    if command != "python run.py":
        assert "run.py" not in page + str(refused.value)


@pytest.mark.parametrize("given", TAKEN)
def test_taken(given: str) -> None:
    check("size=tiny", *given.split(" "))


def test_attach_allows_what_the_command_line_does() -> None:
    options, given = rules_of(AttachOptions), {**rules_of(OverlapConfig), **rules_of(ClusterConfig)}
    assert all(options[name] == given[name] for name in ("buckets", "segments"))
    assert options["seed"] == rules_of(RecordedConfig)["seed"]
    rate, paced = options["rate_mbit"], rules_of(PacedConfig)["rate_mbit"]
    assert isinstance(rate, Rule) and isinstance(paced, Rule)
    assert (rate.low, rate.high) == (paced.low, paced.high)
    own, workers = options["timeout_s"], given["timeout_s"]  # None is the process group's own
    assert isinstance(own, Rule) and isinstance(workers, Rule)
    assert (own.low, own.high) == (workers.low, workers.high)
    for name, value, said in (
        ("timeout_s", 1e30, "timeout_s=1e+30: choose a number from 0.1 to 604800"),
        ("buckets", 100000, "buckets=100000: choose a whole number from 1 to 64"),
        ("rate_mbit", 1e-320, "choose a number from 0.001 to 1000000000, or None"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            make_options(AttachOptions, **{name: value})


def test_help_fits_two_screens() -> None:
    page = (asked_page(["--help"]) or "").splitlines()
    assert 60 <= len(page) <= 100 and max(map(len, page)) <= 100
    named = {word.rstrip(",") for line in page for word in line.split()}
    assert all(group in named or f"{group}=" in named for group in GROUPS if group != "task")
    assert {*TASKS} <= named and {name for names in FIRST.values() for name in names} <= named
    assert "$" not in "".join(page)


GROUPS = sorted(path.name for path in conf_directory().glob("[!h]*") if path.is_dir())


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_and_choice_has_a_page(group: str) -> None:
    page = asked_page(["--help", group]) or ""
    choices = [path.stem for path in (conf_directory() / group).iterdir()]
    assert page.startswith(f"Choices ({group}=<choice>)\n")
    assert choices and all(re.search(rf"^ +{choice} ", page, re.M) for choice in choices)
    for choice in choices if group in ("codec", "network") else choices[:1]:
        page = asked_page([f"{group}={choice}", "--help"]) or ""
        assert page.startswith(f"{group}={choice}: ") and f"{group}={choice}" in page.partition("\nUsage")[2]
        schema = group_schemas().get(group, {}).get(choice, NoOptions)
        for each in dataclasses.fields(schema):
            assert each.name == "name" or f"\n  {group}.{each.name}" in page


def test_help_says_what_a_choice_allows() -> None:
    dynamiq = asked_page(["--help", "codec=dynamiq"]) or ""
    assert re.search(r"\n  codec.bits=5.0\n(.*\n)+? .*a number from 2.6875 to 8.6875\n", dynamiq)
    assert "network.rate_mbit=100000" in (asked_page(["--help", "network=dynamiq_testbed"]) or "")
    assert "python run.py task=plan sweeps=demo size=tiny" in (asked_page(["--help", "sweeps=demo"]) or "")
    assert asked_page(["codec=thc", "task=bench", "--help"]) == asked_page(["--help", "task=bench"])
    for asked, said in (("codecs", "did you mean codec"), ("dance", "choose one of cluster, codec, ")):
        with pytest.raises(ConfigError, match=f"--help {asked}: there is no such group; {said}"):
            asked_page(["--help", asked])
    with pytest.raises(ConfigError, match="codec=dance is unknown"):
        asked_page(["--help", "codec=dance"])


def test_what_changes_nothing_passes_on_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts give the same keys to all tasks: defaults pass, a preset is noted, the rest is refused."""
    check("task=doctor", "tracking=none", "codec.bits=5", "seed=0")
    assert capsys.readouterr().err == ""
    check("task=doctor", "size=tiny")
    assert capsys.readouterr().err == "note: size=tiny has no effect with task=doctor\n"
    for given in ("codec=bf16", "seed=1", "trackin=none", "tracking=wandb"):
        with pytest.raises(ConfigError, match=r"has no effect|unknown"):
            check("task=doctor", given)


def test_every_task_has_a_page() -> None:
    for task in TASKS:
        page = asked_page([f"task={task}", "--help"])
        assert page is not None
        assert page.startswith(f"task={task}: ") and f"python run.py task={task}" in page
        assert max(map(len, page.splitlines())) <= 150
    replay = asked_page(["task=replay", "--help"]) or ""
    for part in ("replay.rounds=1", "gradients=<required>", "measure.save_gradients_at", "from 1 to 100000"):
        assert part in replay
    training = asked_page(["task=train", "--help"]) or ""
    recipe = ("train.lr=${model.recipe.lr}", "train.epochs=${model.recipe.epochs}")
    for key in (*recipe, "eval.every=500", "cluster.restarts=0", "measure.vnmse_every=10"):
        assert f"\n  {key}\n      " in training
    assert "seed=" not in (asked_page(["task=timeline", "--help"]) or "")
    assert "size=tiny" not in (asked_page(["task=bench", "--help"]) or "")
    assert max(map(len, (asked_page(["--help", "all"]) or "").splitlines())) <= 130
    assert "Groups and their choices" in (asked_page(["--help", "all"]) or "")
    assert asked_page(["codec=bf16"]) is None
    with pytest.raises(ConfigError, match="task=dance is unknown"):
        asked_page(["task=dance", "--help"])

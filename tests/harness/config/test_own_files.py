"""`--config-dir`: a user's own files are choices like any others and pass the command line's checks."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from gradwire.codecs.plugins import ALLOWED
from gradwire.harness.config.compose import compose
from gradwire.harness.config.declared import Declared
from gradwire.harness.config.overrides import parse
from gradwire.harness.config.own_files import own_folder, use_folder
from gradwire.harness.config.plugins import allow_plugins
from gradwire.harness.config.validate import validate
from gradwire.harness.files.structured import MOST_YAML
from gradwire.harness.record.identity import run_id
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.sweeps.cells import expand
from gradwire.harness.sweeps.plan import plan_sweep
from gradwire.harness.tasks.front import arranged, asked_page, can_be_completed, check_command_line

OWN = {
    "codec/mine.yaml": "# DynamiQ at 4 bits\ndefaults: [dynamiq, _self_]\nbits: 4\n",
    "codec/mine_too.yaml": "defaults: [mine]\nmean: false\n",
    "codec/six.yaml": "defaults:\n  - /schema/codec/mxfp6@_here_\n  - _self_\nname: mxfp6\n",
    "model/small_gpt.yaml": "defaults: [gpt2, _self_]\nname: small_gpt\nrecipe: {lr: 1e-3}\n",
    "network/lab.yaml": "defaults: [dynamiq_testbed]\nrate_mbit: 1000\nrate_changes: [[60, 0.5]]\n",
    "experiment/quick.yaml": "# @package _global_\ndefaults:\n  - override /codec: mine\n  - _self_\n"
    "train: {steps: 3, warmup_steps: 1}\ncodec: {ef: true}\n",
    "sweeps/both.yaml": "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    cases:\n"
    "      any: [{codec: [bf16, mine]}]\n",
    "task/again.yaml": "# @package _global_\ndefaults: [replay, _self_]\nreplay: {repeats: 2}\n",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv(ALLOWED, "")
    yield tmp_path
    use_folder(None)


def write(files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = Path("own", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def check(*arguments: str) -> None:
    check_command_line(arranged(["--config-dir", "own", "size=tiny", *arguments]))


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as refused:
        check(*arguments)
    message = str(refused.value)
    assert message.isprintable() and len(message) <= 300, message
    return message


def test_own_files_are_choices_like_others() -> None:
    write(OWN)
    check("codec=mine_too", "codec.bits=3", "model=small_gpt")
    config = validate(compose(["size=tiny", "codec=mine_too", "model=small_gpt"]))
    assert tuple(config.codec[key] for key in ("name", "bits", "mean")) == ("dynamiq", 4, False)
    assert (config.model.name, config.model.num_layers) == ("small_gpt", 4)  # a size shrinks every model
    written_out = ["size=tiny", "model=small_gpt", "codec=dynamiq", "codec.bits=4", "codec.mean=false"]
    assert run_id(validate(compose(written_out))) == run_id(config)
    quick = validate(compose(["size=tiny", "experiment=quick", "network=lab"]))
    assert (quick.train.steps, quick.codec["ef"], quick.codec["bits"]) == (3, True, 4)
    assert (quick.cluster.name, quick.network.rate_mbit, quick.network.nodes) == ("virtual", 1000, 4)
    assert compose(["task=again", "gradients=x", "codec=six"]).replay.repeats == 2


def test_keys_that_a_swept_choice_lacks_are_dropped() -> None:
    write(OWN)
    use_folder("own")
    cells = expand(Declared(), "tiny", ["codec=mine,bf16", "codec.bits=3,4"])
    assert [cell.label for cell in cells] == [
        "codec=mine codec.bits=3",
        "codec=mine codec.bits=4",
        "codec=bf16",
    ]


def test_a_name_is_known_only_with_its_folder() -> None:
    write(OWN)
    assert "choose one of all_to_all, aqgb, backend, bf16, dynamiq," in (unknown := refusal("codec=mime"))
    assert ", mine, mine_too, " in unknown and unknown.endswith("did you mean codec=mine?")
    check("codec=mine")
    with pytest.raises(ConfigError, match="codec=mine is unknown"):
        check_command_line(["size=tiny", "codec=mine"])
    assert own_folder() is None


def test_help_lists_them() -> None:
    write(OWN)
    assert " mine, mine_too, six, and " in (asked_page(["--config-dir=own", "--help"]) or "")
    page = asked_page(["--config-dir=own", "--help", "codec"]) or ""
    assert re.search(r"\n +mine +DynamiQ at 4 bits\n", page)
    assert "replay.repeats=5" in (asked_page(["--config-dir=own", "task=again", "--help"]) or "")


def test_they_run_and_sweep(run_py: Callable[..., int], task: Any, place: Path, monkeypatch: Any) -> None:
    """The command runs through Hydra's own main, which gets the files from the same reader."""
    monkeypatch.setattr("gradwire.harness.sweeps.run.finish_sweep", lambda plan: None)
    write(OWN)
    assert run_py("--config-dir", "own", "size=tiny", "codec=mine", "hydra.run.dir=here") == 0
    assert run_py("size=tiny", "-cd", "own", "sweeps=both") == 0
    ran = [(config.codec["name"], config.codec.get("bits")) for config, _ in task.ran]
    assert ran == [("dynamiq", 4), ("bf16", None), ("dynamiq", 4)]


def test_a_plug_in_must_be_allowed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"own_part_{abs(hash(place))}"
    write({"codec/half.yaml": f"defaults: ['{name}:Mine', _self_]\nstrength: 0.5\n"})
    Path(f"{name}.py").write_text(
        "from dataclasses import dataclass\nfrom gradwire.codecs.exact import BF16\n@dataclass\n"
        'class Mine(BF16):\n    name: str = "mine"\n    strength: float = 1.0\n'
    )
    assert f"no file may choose what is imported: name it on the command line, codec={name}:Mine" in refusal(
        "codec=half"
    )
    assert not can_be_completed(f"gradwire codec={name}:Mine to")  # what is typed is not yet entered
    assert name not in sys.modules
    monkeypatch.setenv(ALLOWED, f"{name}:Mine")
    check("codec=half")
    assert compose(["codec=half"]).codec.strength == 0.5
    assert "did you mean codec.strength" in refusal("codec=half", "codec.strenth=1")
    monkeypatch.setenv(ALLOWED, "")
    write({"sweeps/half.yaml": OWN["sweeps/both.yaml"].replace("[bf16, mine]", f"['{name}:Mine']")})
    check("sweeps=half")
    with pytest.raises(ConfigError, match="no file may choose what is imported"):
        plan_sweep(compose(["size=tiny", "sweeps=half"], with_hydra=True).hydra, ["size=tiny", "sweeps=half"])
    allow_plugins(parse([f"codec=bf16,{name}:Mine"]))  # of a sweep that the command line asks for
    assert compose([f"codec={name}:Mine"], named_by_user=False).codec.strength == 1
    monkeypatch.setenv(ALLOWED, "")
    write({"codec/half.yaml": f"defaults: [bf16]\nname: {name}:Mine\n"})
    assert "contradicts defaults, which choose bf16" in refusal("codec=half")


BOMB = "a: &a [1]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(30))

ENTRIES = [  # of an experiment's defaults list
    (entry, "is not a choice; write <choice of experiment>, override /<group>: <choice> or _self_")
    for entry in (
        "/experiment@hydra.callbacks: mine",
        "/experiment/mine@hydra.callbacks",
        "mine@hydra.callbacks",
        "/codec@hydra.sweeper: thc",
        "/schema/codec/thc@hydra.launcher",
        "override /codec@hydra.sweeper: thc",
        "override /codec: thc@hydra.sweeper",
        "override hydra/launcher: basic",
        "override /codec: [thc, bf16]",
        "/codec: [thc, bf16]",
    )
] + [
    ("/schema/codec/thc@_here_", "sets keys of one group in the whole configuration; leave @_here_"),
    ("override /codec@_global_.model: thc", "Did you mean to override codec?"),
    ("/codec: thc", "Multiple values for codec. To override a value use 'override codec: thc'"),
    ("override /hydra: x", "is not a choice; write <choice of experiment>"),
]

SWEEP = "hydra: {{mode: MULTIRUN, sweeper: {{cases: {}}}}}\n"

CASES = [
    ("{_target_: os.getcwd}", "hydra.sweeper.cases._target_: is not a size"),
    (
        "{any: {_target_: os.getcwd}}",
        "hydra.sweeper.cases.any={_target_: os.getcwd}: choose a list of mappings",
    ),
    ("{any: [{_target_: os.getcwd}]}", "hydra.sweeper.cases.any: _target_ cannot be swept"),
    ("{any: [{hydra.launcher.x: 1}]}", "hydra.sweeper.cases.any: hydra.launcher.x cannot be swept"),
    ("{any: [{seed: {_target_: os.getcwd}}]}", "seed={_target_: os.getcwd}: choose a value or a list"),
    ("{any: [{seed: [{_target_: os.getcwd}]}]}", "choose a value or a list of values"),
    ("null", "hydra.sweeper.cases=null: choose a mapping, e.g. {any: [{seed: [0, 1]}]}"),
    ("[1]", "hydra.sweeper.cases=[1]: choose a mapping"),
    ("{any: []}", "hydra.sweeper.cases.any=[]: choose a list of mappings"),
]

BROKEN = [
    ("codec/x.yaml", "bits: [", "own/codec/x.yaml: line 1 is not YAML"),
    ("codec/x.yaml", b"\xff\xfe\x00", "own/codec/x.yaml: is not UTF-8 text"),
    ("codec/x.yaml", "", "own/codec/x.yaml: is null, not a mapping"),
    ("codec/x.yaml", "- 1\n", "own/codec/x.yaml: is a list, not a mapping"),
    ("codec/x.yaml", BOMB, "own/codec/x.yaml: has an alias (*)"),
    ("codec/x.yaml", "a: " + "[" * 5000, "32 inside each other"),
    ("codec/x.yaml", "#" * (MOST_YAML + 1), "is longer than 256 KiB"),
    ("codec/x.yaml", "bits: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ("codec/x.yaml", "bits: ${oc.env:HOME}", "bits holds an interpolation"),
    ("codec/x.yaml", "bits: 4\nbits: 5", "has the key bits twice"),
    ("codec/x.yaml", "bits: 4\n", "does not say which codec it changes; begin it with defaults: [<a choice"),
    ("codec/x.yaml", "defaults: [dynamiq]\nbitz: 4\n", "codec.bitz: unknown key codec.bitz; did you mean"),
    ("codec/x.yaml", "defaults: [dynamiq]\nbits: abc\n", "codec.bits=abc: choose a number from 2.6875"),
    (
        "codec/x.yaml",
        "defaults: [dynamiq]\nbits: 99\nwidths: [4]",
        "codec.bits=99: choose 4.625 (4 bits of",
    ),
    ("codec/x.yaml", "defaults: [dynamiq]\nwidths: 4\n", "codec.widths=4: choose one or more of 1, 2"),
    ("codec/x.yaml", "defaults: [dynamiq]\nname: bf16\n", "codec.name=bf16 contradicts defaults"),
    ("experiment/x.yaml", "# @package _global_\ntask: {name: bench}\n", "task.name=bench contradicts"),
    ("codec/x.yaml", "defaults: [dynamik]\n", "defaults: codec=dynamik is unknown; did you mean dynamiq"),
    ("codec/x.yaml", "defaults: [$]\n", "its defaults list leads back to itself"),
    ("codec/x.yaml", "defaults: dynamiq\n", "defaults=dynamiq: choose a list"),
    ("codec/x.yaml", "defaults: [{codec: [dynamiq, 3]}]\n", "is not a choice; write <choice of codec>"),
    ("codec/x.yaml", "defaults: [{}]\n", "defaults: {} is not a choice; write <choice of codec>"),
    ("codec/x.yaml", "defaults: [{/codec: []}]\n", "is not a choice; write <choice of codec>"),
    ("experiment/x.yaml", "# @package _global_\ncodec: bf16\n", "in the list defaults: - override /codec"),
    (
        "codec/x.yaml",
        "defaults: [/hydra/launcher: basic]\n",
        "is not a choice; write <choice of codec>, override",
    ),
    ("codec/x.yaml", "defaults: [../../x]\n", "codec/../..=x is unknown; choose one of cluster, codec"),
    ("codec/x.yaml", "defaults: [/schema/codec/thc]\n", "does not say which codec it changes"),
    ("codec/x.yaml", "defaults: [/codec/thc@_global_]\n", "is not a choice; write <choice of codec>"),
    (
        "experiment/x.yaml",
        "# @package _global_\ndefaults: [{override /experiment: debug}]\n",
        "is not a choice; write <choice of experiment>, override /<group>: <choice>",
    ),
    ("codec/x.yaml", "defaults: [{override /model: gpt2}]\n", "Did you mean to override model?"),
    ("codec/x.yaml", "# @package train\ndefaults: [bf16]\n", "a file of codec sets keys of codec"),
    ("model/x.yaml", "defaults: [gpt2]\nname: ../x\n", "model.name=../x: choose a name of letters"),
    ("model/x.yaml", "defaults: [gpt2]\nrecipe: 3\n", "model.recipe has keys of its own"),
    ("experiment/x.yaml", "train: {steps: 3}\n", "begin it with the line # @package _global_"),
    ("experiment/x.yaml", "# @package _global_\ntrain: {stepz: 3}\n", "train.stepz: unknown key train.stepz"),
    ("experiment/x.yaml", "# @package _global_\ntrain: 3\n", ": train: train has keys of its own"),
    ("experiment/x.yaml", "# @package _global_\nnew: 3\n", "new: unknown key new"),
    (
        "experiment/x.yaml",
        "# @package _global_\nhydra: {callbacks: {x: {_target_: os.getcwd}}}\n",
        "hydra.callbacks.x._target_=os.getcwd has no effect here",
    ),
    ("experiment/x.yaml", "# @package _global_\nhydra: {searchpath: [x]}\n", "other places are not searched"),
    (
        "task/x.yaml",
        "# @package _global_\ndefaults: [train]\n",
        "sets keys of one group in the whole configuration; leave",
    ),
    ("codec/x.yaml", "defaults: [thc, _self_, _self_]\n", "Duplicate _self_ defined in codec/"),
    ("codec/x.yaml", "defaults: [thc, bf16]\n", "its defaults list builds on two choices"),
    (
        "experiment/x.yaml",
        "# @package _global_\ntrain.steps: 3\n",
        "keys within keys; write train: {steps: 3}",
    ),
    ("experiment/x.yaml", "# @package _global_\nhydra: {sweeper.cases: 3}\n", "write sweeper: {cases: 3}"),
    *[("experiment/x.yaml", f"# @package _global_\ndefaults: [{entry}]\n", said) for entry, said in ENTRIES],
    *[("sweeps/x.yaml", "# @package _global_\n" + SWEEP.format(cases), said) for cases, said in CASES],
]


def test_a_choice_of_another_group_is_no_codec() -> None:
    write({"codec/model.yaml": "defaults: [/schema/model/base@_here_]\n"})
    assert "codec=gpt2" in refusal("codec=model")


def test_a_task_of_ones_own_is_built_on_one() -> None:
    write({"task/bare.yaml": "# @package _global_\ntask: {name: replay}\n"})
    assert "does not say which task it changes; begin it with defaults" in refusal("task=bare")


def test_a_broken_file_is_refused_where_it_is_chosen() -> None:
    """All broken files are in one folder: those that are not chosen are not read."""
    places = [name.replace("x.yaml", f"x{number}.yaml") for number, (name, *_) in enumerate(BROKEN)]
    for number, (place, (_, content, _)) in enumerate(zip(places, BROKEN, strict=True)):
        write({place: content.replace("$]", f"x{number}]") if isinstance(content, str) else content})
    write({"codec/sound.yaml": "defaults: [bf16]\n"})
    check("codec=sound")
    for number, (place, (_, _, said)) in enumerate(zip(places, BROKEN, strict=True)):
        with pytest.raises(ConfigError) as refused:
            compose([f"{place.partition('/')[0]}=x{number}"])
        message = str(refused.value)
        assert said.replace("x.yaml", f"x{number}.yaml") in message and f"x{number}.yaml: " in message, place
        assert message.isprintable() and len(message) <= 300, message
    bitz = next(number for number, (_, content, _) in enumerate(BROKEN) if "bitz" in str(content))
    assert "codec.bitz: unknown key" in refusal(f"codec=x{bitz}")


CALL = "{_target_: pathlib.Path.mkdir, _args_: [{_target_: pathlib.Path, _args_: [called]}]}"


def test_hydra_calls_nothing_that_a_file_names(
    run_py: Callable[..., int], task: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Hydra calls each `_target_` in its callbacks, and in its sweeper unless configured otherwise."""
    write(
        {
            "sweeps/calls.yaml": "# @package _global_\n" + SWEEP.format(CALL),
            "experiment/hides.yaml": "# @package _global_\n" + SWEEP.format(f"{{any: [{{seed: {CALL}}}]}}"),
            "experiment/moves.yaml": "# @package _global_\ndefaults: [/sweeps/calls@hydra.callbacks]\n",
            "experiment/sets.yaml": f"# @package _global_\nhydra: {{callbacks: {{x: {CALL}}}}}\n",
        }
    )
    for choice in ("sweeps=calls", "experiment=hides", "experiment=moves", "experiment=sets"):
        assert run_py("--config-dir", "own", "size=tiny", "hydra.sweep.dir=here", choice) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
    assert not Path("called").exists() and not task.ran
    monkeypatch.setattr("gradwire.harness.config.compose.check_own_file", lambda *_: None)
    assert run_py("--config-dir", "own", "size=tiny", "hydra.sweep.dir=here", "sweeps=calls") == 2
    assert not Path("called").exists(), "the sweeper's own rule prevents it, too"


FOLDERS: list[tuple[dict[str, str | bytes], str]] = [
    ({"codecs/x.yaml": ""}, "adds no choice (did you mean codec?)"),
    ({"notes.txt": ""}, "adds no choice; put files at <group>/<name>.yaml in it"),
    ({"config.yaml": "", "codec/x.yaml": ""}, "the main configuration is gradwire's own"),
    ({"codec/dynamiq.yaml": ""}, "codec=dynamiq exists already; give the file another name"),
    ({"codec/x.yml": ""}, "codec/x.yml: cannot be chosen; rename it to"),
    ({"codec/a b.yaml": ""}, "codec/a b.yaml: cannot be chosen"),
    ({"codec/a\nb.yaml": ""}, "codec/a b.yaml: cannot be chosen"),
]


@pytest.mark.parametrize(("files", "said"), FOLDERS, ids=[said[:40] for _, said in FOLDERS])
def test_a_folder_that_cannot_be_used_is_refused(files: dict[str, str | bytes], said: str) -> None:
    write(files)
    assert said in refusal()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *[
            ("nowhere", "there is no such folder"),
            ("file", "is not a folder"),
            ("file/below", "is not a folder"),
        ],
        *[
            (" ", "no such folder"),
            ("", "<value>"),
            ("x" * 5000, "File name too long"),
            ("~nobody/x", "no such"),
        ],
        *[("a\0b", "no such folder"), ("/proc/1/root/x" * 400, "File name too long")],
    ],
)
def test_what_is_no_folder_is_refused(given: str, said: str) -> None:
    Path("file").touch()
    with pytest.raises(ConfigError) as refused:
        check_command_line(arranged(["size=tiny", "--config-dir", *([given] if given else [])]))
    assert said in str(refused.value) and len(str(refused.value)) <= 300
    with pytest.raises(ConfigError, match="is given more than once"):
        arranged(["--config-dir", "a", "--config-dir=b"])


def test_what_has_been_read_stays_as_it_was() -> None:
    """A file edited during a sweep changes none of its runs."""
    write(OWN)
    check("codec=mine")
    before = copy.deepcopy(OmegaConf.to_container(compose(["codec=mine"])))
    write({"codec/mine.yaml": "defaults: [bf16]\n"})
    compose.__globals__["_composed"].cache_clear()
    assert OmegaConf.to_container(compose(["codec=mine"])) == before

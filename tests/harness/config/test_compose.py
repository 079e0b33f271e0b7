"""Every choice composes and validates; later choices win, and the command line wins over all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from model_folders import save_folder

from gradwire.codecs.native.choice import available_kernels, choose_kernels
from gradwire.codecs.registry import codec_classes, make_codec
from gradwire.harness.comm.topology.registry import TOPOLOGIES
from gradwire.harness.config import validate as validation
from gradwire.harness.config.compose import compose
from gradwire.harness.config.manual import describe
from gradwire.harness.config.validate import validate
from gradwire.harness.models.families import FAMILIES
from gradwire.harness.models.vision import VISION
from gradwire.harness.runtime.conf import conf_directory

CONF = conf_directory()
CHOICES = [(path.parent.name, path.stem) for path in sorted(CONF.glob("[!h]*/*.yaml"))]
GROUPS = {group: [name for of, name in CHOICES if of == group] for group, _ in CHOICES}

MODELS = {"mmlu": "llama1b_mmlu", "glue": "tinybert_glue", "cifar10": "resnet_small"}
"""Data sets that hold no text, and the models that train on them alone."""

FILES = {
    "text.txt": "some words\n\nmore words\n",
    "test/a_test.csv": "What?,1,2,3,4,A\n",
    "val/a_val.csv": "Who?,1,2,3,4,B\n",
    "SST-2/train.tsv": "sentence\tlabel\ngood\t1\n",
    "SST-2/dev.tsv": "sentence\tlabel\nbad\t0\n",
}


def test_every_choice_says_what_it_is_and_which_command_uses_it() -> None:
    for group, choice in CHOICES:
        what, command = describe(CONF / group / f"{choice}.yaml")
        used = f"{group}.", f"{group}={choice}"
        assert what, (group, choice)
        assert any(override.startswith(used) for override in command.split()[2:]), (group, choice)


@pytest.mark.parametrize("turn", range(max(len(choices) for choices in GROUPS.values())))
def test_every_choice_of_every_group_is_runnable(
    turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn takes another choice of each group; together they take all, whatever memory is here.

    Networks that require workers of a kind have more tests in test_network_configs.py.
    """
    monkeypatch.setattr(validation, "check_memory", lambda run: None)
    chosen = {group: choices[turn % len(choices)] for group, choices in GROUPS.items()}
    others = ("resnet50", "resnext101", "minilm_glue")
    own = {model: dataset for dataset, model in MODELS.items()} | dict.fromkeys(others)
    if chosen["dataset"] in MODELS or chosen["model"] in own:  # that model's turn is its data set's
        chosen["model"] = MODELS.get(chosen["dataset"], "gpt2")
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    if chosen["dataset"] == "cifar10" and chosen["parallel"] == "pipeline":
        chosen["parallel"] = "ddp"  # layers of several widths are no stages
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / split / label).mkdir(parents=True, exist_ok=True)
            (tmp_path / split / label / "0.png").touch()
    extra = [] if chosen["dataset"] == "embedded" else [f"dataset.path={tmp_path}"]
    if chosen["model"] == "folder":
        extra.append(f"model.path={save_folder(tmp_path.with_name('own') / 'neox', 'neox')}")
        chosen["parallel"] = "ddp"  # stages are of families with presets
    chosen["task"] = "train"  # others have configurations of their own: test_task_configs.py
    if chosen["sweeps"].startswith("replay"):  # of another task: test_replay_task.py
        del chosen["sweeps"]
    if chosen["experiment"] not in ("smoke", "debug"):  # these choose a codec: test_sharded_strategies.py
        chosen["experiment"] = "smoke"
    if chosen["kernels"] not in ("auto", *available_kernels()):
        chosen["kernels"] = "default"
    if chosen["codec"] == "all_to_all" and chosen["topology"] != "two_level":
        chosen["topology"] = "ring"
    if chosen["codec"] == "backend":
        chosen |= {"network": "none", "cluster": "local"}
    if make_codec(chosen["codec"]).refines:
        chosen |= {"parallel": "blocks", "topology": "broadcast"}
    elif not make_codec(chosen["codec"]).scatters or chosen["topology"] == "broadcast":
        chosen["parallel"] = "ddp"
    if chosen["codec"] == "edgc":  # its windows are those of long runs
        extra += ["codec.window=2", "codec.alpha=1"]
    if chosen["parallel"] == "sharded":  # needs more memory in one process, as cluster=virtual has it
        extra += ["parallel.model_dtype=bfloat16"]
    if chosen["network"] == "shaped":  # needs root
        chosen["network"] = "none"
    if chosen["network"] not in ("none", "paced"):
        chosen["cluster"] = "virtual"
        # Whole nodes of every testbed, also where a preset has fewer; `two_level` needs two of them.
        needs_two = chosen["topology"] == "two_level" and chosen["network"] == "sdp4bit_h800"
        extra.append(f"cluster.workers={16 if needs_two else 8}")
    if chosen["topology"] == "two_level" and chosen["network"] in ("none", "paced", "simulated"):
        extra.append("cluster.ranks_per_node=1")
    composed = compose([f"{group}={choice}" for group, choice in chosen.items()] + extra)
    composed.model.weights, composed.model.tokenizer = "random", None  # size=paper requires the real ones
    config = validate(composed).mapping()
    names = {group: choice for group, choice in chosen.items() if "name" in config.get(group, {})}
    names["model"] = names["model"].replace("folder", "neox")  # as its folder is called
    names["dataset"] = "text" if chosen["dataset"] == "auto" else chosen["dataset"]  # auto: there is a path
    names["kernels"] = choose_kernels(chosen["kernels"])  # what auto stands for
    if config["network"].get("preset", "custom") != "custom":
        assert config["network"]["preset"] == names.pop("network")
    assert {group: config[group]["name"] for group in names} == names


def test_defaults() -> None:
    config = compose()
    assert config.seed == 0
    assert config.overlap == {"enabled": True, "buckets": 2, "segments": 1}
    names = {group: config[group].name for group in ("task", "model", "size", "dataset", "codec", "topology")}
    assert names == {
        "task": "train",
        "model": "gpt2",
        "size": "paper",
        "dataset": "auto",
        "codec": "dynamiq",
        "topology": "ring",
    }
    assert (config.parallel.name, config.network.name, config.cluster.name) == ("ddp", "none", "local")
    assert (config.train.lr, config.train.epochs) == (config.model.recipe.lr, config.model.recipe.epochs)


def test_choices_cover_the_registries() -> None:
    own = {name for name, made in codec_classes().items() if made.__module__.startswith("gradwire.")}
    assert {choice for group, choice in CHOICES if group == "codec"} == own
    assert {choice for group, choice in CHOICES if group == "topology"} == set(TOPOLOGIES)


def test_later_wins_and_the_command_line_wins_over_all() -> None:
    assert compose(["size=tiny"]).train.steps != 5
    assert compose(["experiment=smoke", "size=tiny"]).train.steps == 5  # experiment over size, typed before
    demo = yaml.safe_load((CONF / "sweeps" / "demo.yaml").read_text())["train"]["steps"]
    assert compose(["experiment=smoke", "size=tiny", "sweeps=demo"]).train.steps == demo  # sweeps last
    config = compose(["train.steps=7", "sweeps=demo", "experiment=smoke", "size=tiny", "model=bert_large"])
    assert config.train.steps == 7
    assert config.model.name == "bert_large"  # also over the sweep's own choice of a group


@pytest.mark.parametrize(
    ("size", "most", "model"),
    [
        ("tiny", 1.3e6, "gpt2"),
        ("tiny", 1.3e6, "llama1b"),
        ("small", 3e5, "bert_large"),
        ("small", 3e5, "llama1b"),
    ],
)
def test_sizes_shrink_every_model(size: str, most: float, model: str) -> None:
    shape = compose([f"size={size}", f"model={model}"]).model
    head = shape.hidden_size // shape.num_heads
    attention = 2 * shape.hidden_size * (shape.hidden_size + head * shape.num_kv_heads)
    matrices = 3 if shape.family == "llama" else 2
    layer = attention + matrices * shape.hidden_size * shape.intermediate_size
    embeddings = (shape.vocab_size + shape.context) * shape.hidden_size
    assert 0.1 * most < shape.num_layers * layer + embeddings < most
    assert shape.weights == "random"


def test_paper_recipes_are_the_papers() -> None:
    """DynamiQ Table 1."""
    llama = compose(["model=llama1b"]).train
    assert (llama.lr, llama.end_factor, llama.epochs, llama.schedule_epochs) == (2e-5, 1 / 8, 3, 2)
    bert = compose(["model=bert_large"])
    train = bert.train
    assert (train.lr, train.end_factor, train.epochs, train.schedule_epochs) == (5e-5, 1 / 16, 21, 15)
    assert train.micro_batch * bert.model.recipe.sequence_length == 2048


def test_yaml_files_do_not_repeat_a_help_text() -> None:
    """Help texts are next to the dataclass field; the files have comments at their head only: the first line,
    and below it what is to be said of the whole file, such as where a testbed's figures come from."""
    for group, choice in CHOICES:
        lines = (CONF / group / f"{choice}.yaml").read_text().splitlines()
        head = [line for line in lines if not line.startswith("# @package")]
        comments = [line for line in lines if re.match(r"\s*#(?! @package)", line)]
        assert comments and head[: len(comments)] == comments, (group, choice)


def test_validation_replaces_every_auto() -> None:
    config = validate(compose(["size=tiny"]))
    assert config.dataset.name == "embedded"
    assert config.dataset.sequence_length == config.model.recipe.sequence_length
    assert config.cluster.workers >= 1
    assert config.cluster.backend in ("gloo", "nccl")
    assert config.train.precision in ("fp32", "bf16")
    assert config.cluster.device in ("cpu", "cuda")


def test_choices_of_size_are_whole_for_every_family() -> None:
    for size in ("gpu", "small", "tiny"):
        families = yaml.safe_load((CONF / "size" / f"{size}.yaml").read_text())["size"]["families"]
        assert set(families) == {*FAMILIES, *VISION}


def test_under_torchrun_the_world_is_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    config = compose(["size=tiny"])
    assert validate(config).cluster.workers == 3
    config.cluster.workers = 2
    with pytest.raises(ValueError, match=r"cluster.workers=2, but torchrun started 3"):
        validate(config)

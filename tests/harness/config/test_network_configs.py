"""`network=`: every choice, the settings it brings along, and what it cannot be combined with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.network.settings import SimulatedConfig, with_papers_computation
from gradwire.harness.record.identity import computation_id, computation_of, run_id
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError

ROOT = Path(__file__).parents[3]
CHECK = "gradwire.harness.network.shaped.check"
GIVEN = "network.compute_s=1"

TESTBEDS = {
    "dynamiq_testbed": (8, 2, 1, 100e3, 450e3),  # DynamiQ §5
    "sdp4bit_a100": (64, 4, 1, 100e3, 2400e3),  # SDP4Bit §5.1 (1)
    "sdp4bit_h800": (128, 8, 8, 400e3, 1600e3),  # SDP4Bit §5.1 (2)
    "edgc_v100": (32, 4, 1, 32e3, 300e3),  # EDGC Table II, Cluster 1
    "edgc_h100": (64, 4, 1, 400e3, 900e3),  # EDGC Table II, Cluster 2
    "aqgb": (16, 1, 1, 2500.0, None),  # AQGB §5.1.2
}
"""Workers, of a node, NICs of a node, Mbit/s of each, of a worker inside its node."""


def settled(*overrides: str) -> DictConfig:
    """The settings that `python run.py size=tiny <overrides>` runs with."""
    return validate(compose(["size=tiny", *overrides]))


def test_every_network_is_a_testbed_of_the_papers_or_known() -> None:
    choices = {path.stem for path in (conf_directory() / "network").glob("*.yaml")}
    assert choices == {"none", "paced", "shaped", "simulated", *TESTBEDS}


@pytest.mark.parametrize("network", TESTBEDS)
def test_a_testbed_is_the_papers_and_brings_its_workers(network: str) -> None:
    config = settled(f"network={network}")
    links = config.network
    of_nodes = links.ranks_per_node, links.nics, links.rate_mbit, links.intra_rate_mbit
    assert (config.cluster.workers, *of_nodes) == TESTBEDS[network]
    assert (config.cluster.name, links.name, links.preset) == ("virtual", "simulated", network)
    assert links.fabric == ("star" if network == "aqgb" else "two_level")
    assert links.nodes * links.ranks_per_node == config.cluster.workers
    assert links.latency_s > 0
    assert links.jitter == (0.1 if network == "aqgb" else 0)
    assert links.multicast == (network == "aqgb")


def test_a_part_of_a_testbed_has_fewer_nodes() -> None:
    assert settled("network=dynamiq_testbed", "cluster.workers=4").network.nodes == 2
    assert settled("network=aqgb", "cluster.workers=5").network.nodes == 5
    wider = settled("network=dynamiq_testbed", "cluster.workers=16", "network.nodes=8")
    assert (wider.network.nodes, wider.cluster.workers) == (8, 16)


def test_nodes_are_workers_and_workers_are_nodes() -> None:
    two_level = ("network=simulated", "network.fabric=two_level", "network.intra_rate_mbit=1e4")
    by_nodes = settled(*two_level, "network.nodes=3", "network.ranks_per_node=2")
    by_workers = settled(*two_level, "cluster.workers=6", "network.ranks_per_node=2")
    assert (by_nodes.cluster.workers, by_workers.network.nodes) == (6, 3)
    assert run_id(by_nodes) == run_id(by_workers)
    assert settled("network=simulated").network.nodes == 4


def test_a_simulated_network_chooses_the_virtual_cluster() -> None:
    assert compose(["network=simulated"]).cluster.name == "virtual"
    assert compose(["network=paced"]).cluster.name == "local"
    with pytest.raises(ConfigError, match=r"network=simulated.*cannot be used with cluster=local; leave"):
        settled("network=simulated", "cluster=local")
    with pytest.raises(ConfigError, match=r"network=aqgb is the clock of cluster=virtual"):
        settled("cluster=local", "network=aqgb")


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        ("network=simulated", "network=simulated"),
        ("network=aqgb", "network=aqgb"),
        ("cluster=virtual", "cluster=virtual"),
        ("task=allreduce", "task=allreduce"),
        ("task=retime run=somewhere", "task=retime"),
    ],
)
def test_without_its_engine_no_simulated_clock_is_accepted(
    given: str, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.harness.timing.simulate.engine.library", lambda: None)
    tiny = [] if given.startswith("task=") else ["size=tiny"]
    with pytest.raises(
        ConfigError, match=rf"^{subject} needs the simulated clock, .*; install g\+\+, then make"
    ):
        validate_any(compose([*tiny, *given.split()]))
    assert settled("network=paced").cluster.name == "local"


def test_the_cells_of_a_sweep_have_clusters_of_their_own(run_py: Callable[..., int], task: Any) -> None:
    assert run_py("--multirun", "size=tiny", "network=none,simulated,aqgb", "cluster.workers=4") == 0
    ran = [(config.network.name, config.cluster.name) for config, _ in task.ran]
    assert ran == [("none", "local"), ("simulated", "virtual"), ("simulated", "virtual")]


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("network.fabric=two_level", ["network.ranks_per_node=1", "intra_rate_mbit=null", "fabric=star"]),
        ("network.fabric=two_level network.ranks_per_node=2", ["network.intra_rate_mbit=null"]),
        (
            "network.fabric=two_level network.intra_rate_mbit=9",
            ["network.ranks_per_node=1 and", "network.ranks_per_node=4"],
        ),
        ("network.fabric=tree", ["network.fabric=tree", "star, two_level"]),
        ("network.intra_rate_mbit=100", ["network.intra_rate_mbit=100", "no effect", "two_level"]),
        ("network.intra_latency_s=1", ["network.intra_latency_s=1", "no effect with network.fabric=star"]),
        ("network.oversubscription=2", ["network.oversubscription=2", "no effect"]),
        ("network.ranks_per_node=2", ["network.ranks_per_node=2", "no effect"]),
        ("network.rate_changes=[[5,0.5],7]", ["rate_changes=[[5, 0.5], 7]: choose a list, each a list"]),
        ("network.rate_changes=[[5,-1]]", ["has [5, -1]", "factors at least 0.001 and at most 1000"]),
        ("network.rate_changes=[[5,1e-320]]", ["factors at least 0.001"]),
        ("network.rate_changes=[[5,fast]]", ["has [5, 'fast']", "not [second, factor]"]),
        ("network.rate_changes=[[5,2],[5,3]]", ["rate_changes=[[5,2],[5,3]]", "ascending order"]),
        ("network.nics=2", ["network.nics=2", "no effect with network.fabric=star"]),
        (
            "network.fabric=two_level network.intra_rate_mbit=9 network.ranks_per_node=4 network.nics=3",
            ["network.nics=3", "network.ranks_per_node=4", "a divisor of it"],
        ),
        ("network.nodes=3", ["cluster.workers=4", "network.nodes=3", "add network.nodes=4"]),
        ("network.rate_mbit=0", ["network.rate_mbit=0", "from 0.001 to"]),
        ("network.efficiency=0", ["network.efficiency=0", "from 0.001 to 1"]),
        ("network.efficiency=1.1", ["network.efficiency=1.1", "from 0.001 to 1"]),
        ("network.oversubscription=0.5", ["network.oversubscription=0.5", "from 1 to"]),
        ("network.jitter=1", ["network.jitter=1", "at least 0 and below 1"]),
        ("network.straggler_share=2", ["network.straggler_share=2", "from 0 to 1"]),
        ("network.straggler_factor=0.5", ["network.straggler_factor=0.5", "from 1 to"]),
        ("network.jitter_per=rank", ["network.jitter_per=rank", "one of step, block"]),
        (
            "network.straggler_range=[2,1] network.straggler_share=0.1",
            ["network.straggler_range=[2,1] is not [low, high]", "e.g. [1.5,3]"],
        ),
        (
            "network.straggler_range=[1,2,3] network.straggler_share=0.1",
            ["network.straggler_range=[1,2,3] is not [low, high]"],
        ),
        ("network.straggler_range=[0,2]", ["straggler_range=[0.0, 2.0]", "from 0.001 to 1000000"]),
        ("network.straggler_range=[1,2]", ["has no effect with network.straggler_share=0"]),
        (
            "network.straggler_range=[1,2] network.straggler_share=0.1 network.straggler_factor=3",
            ["network.straggler_factor=3 has no effect with network.straggler_range=[1,2]"],
        ),
        ("network.forward_share=1", ["network.forward_share=1", "above 0 and below 1"]),
        ("network.blocks=[[9,1,1],7]", ["network.blocks=[[9, 1, 1], 7]: choose a list, each a list"]),
        (f"{GIVEN} network.blocks=[[9,1]]", ["network.blocks has [9, 1]", "not [parameters, forward share"]),
        (f"{GIVEN} network.blocks=[[9.5,1,1]]", ["blocks has [9.5, 1, 1]", "whole number of at least 1"]),
        (f"{GIVEN} network.blocks=[[9,1,-1]]", ["network.blocks has [9, 1, -1]", "shares at least 0"]),
        (f"{GIVEN} network.blocks=[[9,1,0],[9,1,0]]", ["blocks has backward shares that are all 0"]),
        (
            "network.blocks=[[9,1,1]]",
            ["blocks=[[9,1,1]] has no effect without network.compute_s;", "add e.g. network.compute_s=1.5"],
        ),
        (
            "network.jitter=0.1 network.jitter_per=block",
            ["network.jitter_per=block", "parallel=ddp", "network.jitter_per=step"],
        ),
        (
            "network.blocks=[[9,1,1]] network.compute_s=1 parallel=pipeline codec=optimus_cc",
            ["network.blocks=[[9,1,1]] has no effect with parallel=pipeline"],
        ),
        (
            "network.jitter_per=block parallel=pipeline codec=optimus_cc",
            ["network.jitter_per=block has no effect with parallel=pipeline"],
        ),
        (
            "network.blocks=[[9,1,1]] network.compute_s=1 parallel=blocks topology=broadcast",
            ["network.blocks has 1 blocks and parallel=blocks has 4", "set parallel.num_blocks=1"],
        ),
        ("network.background_jobs=-1", ["network.background_jobs=-1", "from 0 to 64"]),
        ("network.compute_s=-1", ["network.compute_s=-1", "from 1e-09 to"]),
        ("network.codec_times=measure", ["network.codec_times=measure", "did you mean measured"]),
        ("network.compute=share", ["network.compute=share", "did you mean shared"]),
        ("network.compute=file:", ["network.compute=file: names no file", "file:outputs/"]),
        ("network.compute=file:nowhere", ["network.compute=file:nowhere: there is no profile"]),
        (
            "network.compute=measured network.compute_s=1",
            ["network.compute=measured has no effect with network.compute_s=1"],
        ),
        ("codec=backend", ["codec=backend", "cluster=virtual", "use codec=fp32"]),
    ],
)
def test_simulated_refused_in_one_line(
    given: str, parts: list[str], with_values: Callable[..., DictConfig]
) -> None:
    config = with_values("network=simulated", *given.split(" "))
    with pytest.raises(ConfigError) as refused:
        validate(config)
    assert "\n" not in str(refused.value)
    assert [part for part in parts if part not in str(refused.value)] == [], refused.value


def test_workers_fill_nodes_and_fit_the_testbed(with_values: Callable[..., DictConfig]) -> None:
    for given, said in {
        "cluster.workers=3": r"cluster.workers=3 does not fill nodes of.*ranks_per_node=2.*workers=4$",
        "cluster.workers=10": r"cluster.workers=10 contradicts network.nodes=4.*add network.nodes=5$",
    }.items():
        with pytest.raises(ConfigError, match=said):
            validate(with_values("network=dynamiq_testbed", given))


@pytest.mark.parametrize("network", ["simulated", "shaped"])
@pytest.mark.usefixtures("links_can_be_shaped")
def test_background_jobs_need_a_link(network: str) -> None:
    with pytest.raises(
        ConfigError, match=r"network.background_jobs=3 needs links.*cluster.workers=2 or more"
    ):
        settled(f"network={network}", "network.background_jobs=3", "cluster.workers=1")


def test_another_devices_codec_times_count_by_what_they_are(tmp_path: Path) -> None:
    def identified(given: Path) -> tuple[str, str]:
        config = settled("network=simulated", f"network.codec_times={given}")
        return config.network.codec_times, run_id(config)

    found = json.loads((ROOT / "results" / "bench" / "cpu" / "bench.json").read_text())
    content = json.dumps(found | {"device": "H200"})
    for name in ("one/bench.json", "two/h200.json", "three/bench.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    file, first = identified(tmp_path / "one")
    assert file == str(tmp_path / "one" / "bench.json")
    assert identified(tmp_path / "two" / "h200.json")[1] == first
    (tmp_path / "three" / "bench.json").write_text(content.replace("H200", "H100"))
    ids = {first, identified(tmp_path / "three")[1], run_id(settled("network=simulated"))}
    assert len(ids) == 3
    refused = {"{": "is not JSON", "[1]": "is a list, not an object", '{"rows": 3}': "holds no rows"}
    refused[json.dumps(found | {"rows": found["rows"][:3]})] = "task=bench"
    for text, said in refused.items():
        (tmp_path / "one" / "bench.json").write_text(text)
        with pytest.raises(ConfigError, match=said):
            identified(tmp_path / "one")
    with pytest.raises(ConfigError, match=r"network.codec_times=.*: no such file.*task=bench"):
        identified(tmp_path)
    given = f"network.codec_times={tmp_path / 'two' / 'h200.json'}"
    with pytest.raises(ConfigError, match="codec=powersgd"):
        settled("network=simulated", given, "codec=powersgd")


def test_a_name_and_where_gradients_wait_change_no_result() -> None:
    plain = run_id(settled("network=simulated"))
    assert run_id(settled("network=simulated", "network.preset=mine")) == plain
    assert run_id(settled("network=simulated", "cluster.gradients=disk")) == plain
    assert run_id(settled("network=simulated", "network.background_jobs=1")) != plain


@pytest.mark.usefixtures("links_can_be_shaped")
def test_changes_of_rates_and_blocks_change_ids() -> None:
    config = settled("network=shaped")
    assert run_id(settled("network=shaped", "network.rate_changes=[[1,2]]")) != run_id(config)
    config = settled("network=simulated", "network.compute_s=1")
    given = ("network.forward_share=0.365", "network.blocks=[[3e6,0.4,0.5],[5e6,0.6,0.5]]")
    ids = {run_id(settled("network=simulated", "network.compute_s=1", one)) for one in given}
    assert len(ids | {run_id(config)}) == 3


@pytest.mark.usefixtures("links_can_be_shaped")
def test_shaped_links_join_processes_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    cluster = settled("network=shaped", "codec=backend").cluster
    assert (cluster.name, cluster.device, cluster.backend) == ("local", "cpu", "gloo")


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("cluster=virtual", ["network=shaped", "cluster=virtual", "network=simulated"]),
        ("cluster.backend=nccl", ["network=shaped", "cluster.backend=nccl", "leave cluster.backend out"]),
        ("cluster.device=cuda", ["network=shaped", "cluster.device=cuda", "leave cluster.device out"]),
        ("cluster.workers=251", ["cluster.workers=251", "250", "network=simulated"]),
        ("network.queue_kb=8", ["network.queue_kb=8", "from 64 to"]),
        ("network.background_mb=0", ["network.background_mb=0", "from 0.001 to"]),
        ("network.rate_mbit=0", ["network.rate_mbit=0", "from 0.001 to"]),
        ("network.rate_changes=[[5,0.5],7]", ["rate_changes=[[5, 0.5], 7]: choose a list, each a list"]),
        ("network.rate_changes=[[5,-1]]", ["has [5, -1]", "factors at least 0.001 and at most 1000"]),
        ("network.rate_changes=[[5,2],[5,3]]", ["rate_changes=[[5,2],[5,3]]", "ascending order"]),
        (
            "network.rate_mbit=0.1 network.rate_changes=[[5,0.005]]",
            ["factor 0.005 from second 5 on makes 0.0005 Mbit/s", "use factors from 0.01 to 1e+10"],
        ),
    ],
)
@pytest.mark.usefixtures("links_can_be_shaped")
def test_shaped_refused_in_one_line(given: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        settled("network=shaped", *given.split(" "))
    assert [part for part in parts if part not in str(refused.value)] == [], refused.value


def test_shaped_says_what_this_machine_lacks(
    links_can_be_shaped: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    links_can_be_shaped("only root may make namespaces")
    with pytest.raises(
        ConfigError, match=r"network=shaped cannot be used here: only root may.*network=paced"
    ):
        settled("network=shaped")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"network=shaped.*cannot run under torchrun; use python run.py"):
        settled("network=shaped")


def test_shaped_is_runnable_where_links_can_be_shaped() -> None:
    reason = pytest.importorskip(CHECK).why_not()
    if reason is not None:
        pytest.skip(reason)
    assert settled("network=shaped", "network.queue_kb=null").network.queue_kb is None


def test_real_workers_have_their_own_time() -> None:
    assert settled("network=paced").network.compute == "shared"
    for network in ("none", "paced"):
        with pytest.raises(ConfigError, match=r"network.compute=measured has no effect with cluster=local"):
            settled(f"network={network}", "network.compute=measured")
    with pytest.raises(ConfigError, match=r"network.compute=measured has no effect with task=allreduce"):
        validate_any(compose(["size=tiny", "task=allreduce", "network=paced", "network.compute=measured"]))
    # One axis of a sweep may be read by some of its tasks, or by all values but 0 of another axis.
    validate_any(compose(["task=allreduce", "network=simulated", "network.compute_s=1"]))
    for key in ("forward_share=0.4", "background_mb=5", "straggler_factor=3"):
        settled("network=simulated", f"network.{key}")


def test_a_profile_counts_by_what_it_says_and_has_the_computation(tmp_path: Path) -> None:
    virtual = ("cluster=virtual", "model.num_layers=1")
    settings = settled(*virtual).mapping()
    spread = {"p10": 1.0, "median": 2.0, "p90": 3.0, "count": 4}
    origin = {"processor": "", "threads": 1, "torch": "", "commit": None, "date": "", "codec": "", "steps": 1}
    own = {
        "id": computation_id(settings),
        "about": computation_of(settings),
        "step": spread,
        "origin": origin,
    }
    for name, seconds in (("one", 1.0), ("same", 1.0), ("other", 0.5)):
        stretch = {"label": "update", "place": 0, "seconds": spread | {"p10": seconds}}
        (tmp_path / name).mkdir()
        content = json.dumps({"computations": [own | {"origin": origin, "stretches": [stretch]}]})
        (tmp_path / name / "profile.json").write_text(content)

    def identified(compute: str) -> str:
        return run_id(settled(*virtual, f"network.compute={compute}"))

    plain = run_id(settled(*virtual))
    assert identified("shared") == plain
    ids = [identified(f"file:{tmp_path / name}") for name in ("one", "same", "other")]
    assert ids[0] == ids[1]
    assert len({plain, identified("measured"), *ids}) == 4
    with pytest.raises(ConfigError, match=r"has no computation of these settings.*only: gpt2 of 1 layers"):
        settled("cluster=virtual", f"network.compute=file:{tmp_path / 'one'}")


def test_a_testbed_takes_the_computation_that_its_paper_prints() -> None:
    virtual = SimulatedConfig(preset="aqgb")
    taken = with_papers_computation(virtual, "resnet50", "paper")
    assert isinstance(taken, SimulatedConfig) and (taken.compute_s, taken.forward_share) == (1.5, 0.365)
    for network, model, size in (
        (virtual, "gpt2", "paper"),
        (virtual, "resnet50", "tiny"),
        (replace(virtual, compute_s=2.0), "resnet50", "paper"),
        (replace(virtual, compute="measured"), "resnet50", "paper"),
        (SimulatedConfig(preset="edgc_h100"), "resnet50", "paper"),
    ):
        assert with_papers_computation(network, model, size) == network

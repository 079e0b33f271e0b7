"""`cluster.share_device`: what it resolves to, and what is refused with it and names it."""

from __future__ import annotations

import pytest

from gradwire.codecs.native import choice
from gradwire.harness.config import resources
from gradwire.harness.config.cluster import check_graphs
from gradwire.harness.config.compose import compose
from gradwire.harness.config.resources import check_memory
from gradwire.harness.config.validate import validate, validate_any
from gradwire.harness.network.configured import NO_NETWORK, common_text, network_text, recorded_text
from gradwire.harness.network.settings import UnpacedConfig
from gradwire.harness.record.identity import computation_id, settings_id
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.timing.measure.metrics import kind_of
from gradwire.harness.tracking.messages import tags
from gradwire.harness.trainer.settings import RunConfig

SHARED = ("size=tiny", "cluster.share_device=true")


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    monkeypatch.setattr(choice, "available_kernels", lambda: ("default", "cpu", "cuda"))


def config(*overrides: str) -> RunConfig:
    return validate(compose([*SHARED, *overrides]))


@pytest.mark.parametrize(("count", "workers"), [(1, 2), (1, 5), (2, 3)])
def test_more_workers_than_gpus_use_them_over_gloo(
    count: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, count)
    found = config(f"cluster.workers={workers}")
    assert (found.cluster.workers, found.cluster.device, found.cluster.backend) == (workers, "cuda", "gloo")
    assert found.kernels.name == "cuda"


def test_without_it_nothing_is_different() -> None:
    found = validate(compose(["size=tiny", "cluster.workers=2"])).cluster
    assert (found.share_device, found.device, found.backend) == (False, "cpu", "gloo")


def test_what_too_few_gpus_refuse_names_it() -> None:
    with pytest.raises(
        ConfigError, match=r"cluster.device=cuda needs.*there are 1.*cluster.share_device=true"
    ):
        validate(compose(["size=tiny", "cluster.workers=2", "cluster.device=cuda"]))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["cluster.workers=1"], "more workers than GPUs: cluster.workers=1, and there are 1"),
        (["cluster.workers=null"], "cluster.workers=null.*use cluster.workers=2"),
        (["cluster=virtual", "cluster.workers=2"], "for real workers.*leave it out"),
        (["cluster.workers=2", "cluster.device=cpu"], "cluster.device=cpu uses none"),
        (["cluster.workers=2", "cluster.backend=nccl"], "nccl refuses two ranks on one GPU"),
        (["cluster.workers=2", "network=paced"], "measures no network.*network=paced; use network=none"),
    ],
)
def test_what_cannot_share_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^cluster.share_device=true.*{said}") as refused:
        config(*overrides)
    assert "\n" not in str(refused.value)


def test_shaped_links_are_refused() -> None:
    with pytest.raises(ConfigError, match="network=shaped"):
        config("cluster.workers=2", "network=shaped")


def test_without_a_gpu_there_is_nothing_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    with pytest.raises(ConfigError, match="cluster.share_device=true: there is no GPU here; leave it out"):
        config("cluster.workers=2")


def test_under_a_launcher_its_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    found = config("cluster.workers=null").cluster
    assert (found.workers, found.device, found.backend) == (2, "cuda", "gloo")
    gpus(monkeypatch, 2)
    with pytest.raises(ConfigError, match="the launcher started 2 here for 2; leave it out"):
        config("cluster.workers=null")


@pytest.mark.parametrize("task", ["bench", "overhead", "allreduce"])
def test_no_task_that_measures_links_takes_it(task: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster.share_device.*task={task}.*leave it out"):
        validate_any(compose([f"task={task}", "cluster.share_device=true", "cluster.workers=2"]))


def test_only_runs_that_share_have_another_id() -> None:
    alone = validate(compose(["size=tiny", "cluster.workers=2", "cluster.device=cpu"]))
    settings, earlier = alone.mapping(), alone.mapping()
    del earlier["cluster"]["share_device"]
    assert settings_id(settings) == settings_id(earlier)
    settings["cluster"]["share_device"] = True
    assert settings_id(settings) != settings_id(earlier)
    assert computation_id(settings) != computation_id(earlier), "ranks take one another's time"


def test_a_gpu_has_to_hold_all_ranks_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = config("cluster.workers=3")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    one = resources.PARAMETER_BYTES * resources.num_parameters(found.model)
    monkeypatch.setattr(resources, "_gpu_bytes", lambda: 2 * one)
    with pytest.raises(ConfigError, match="training in 3 workers takes at least .* GiB, and this GPU has"):
        check_memory(found)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match="training in 2 workers takes at least .* GiB, and this GPU has"):
        check_memory(found)


def test_required_graphs_are_refused() -> None:
    with pytest.raises(ConfigError, match="^kernels.graphs=always: the host carries messages between ranks"):
        config("cluster.workers=2", "kernels.graphs=always")
    check_graphs(config("cluster.workers=2"))


def test_its_times_are_never_called_measured() -> None:
    found = config("cluster.workers=2")
    kind = kind_of("local", "none", share_device=True)
    assert kind == "emulated"
    for said in (network_text(found.network, kind), recorded_text({"name": "none"}, kind)):
        assert said == NO_NETWORK and "no network was measured" in said
    assert network_text(UnpacedConfig(), "measured") == "measured (network as it is)"
    assert (
        common_text([NO_NETWORK, "measured (network as it is)"])
        == f"{NO_NETWORK} and measured (network as it is)"
    )
    assert "emulated shared device" in tags(found.mapping())

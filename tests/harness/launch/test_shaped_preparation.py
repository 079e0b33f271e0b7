"""Files that a run needs from the hub are fetched before its ranks enter namespaces without a way out."""

from __future__ import annotations

import os

import pytest
from omegaconf import OmegaConf

from gradwire.harness.config.compose import compose
from gradwire.harness.launch import shaped_network as shaped
from gradwire.harness.network.settings import UnpacedConfig


@pytest.mark.parametrize(
    ("overrides", "fetched"),
    [
        (["model.weights=random"], []),
        (["model.weights=pretrained", "model.path=weights"], []),
        (["model.weights=pretrained"], ["openai-community/gpt2"]),
    ],
)
def test_weights_are_fetched_if_the_hub_has_them(
    overrides: list[str], fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(shaped, "build_model", lambda config, seed: asked.append(config.pretrained))
    shaped.fetch_weights(OmegaConf.to_object(compose(["model=gpt2", *overrides]).model), 0)
    assert asked == fetched


@pytest.mark.parametrize("before", [None, "0"])
def test_ranks_look_into_caches_only(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shaped.OFFLINE, raising=False)
    if before is not None:
        monkeypatch.setenv(shaped.OFFLINE, before)
    with shaped._without_hub():
        assert os.environ[shaped.OFFLINE] == "1"
    assert os.environ.get(shaped.OFFLINE) == before


def test_other_networks_are_not_made(tmp_path: os.PathLike[str]) -> None:
    with shaped.shaped_network(UnpacedConfig(), 2, tmp_path) as network:  # type: ignore[arg-type]
        assert network is None

"""The mode in which a run is shown follows from this machine's login and settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate, validate_task
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.tracking import settings as login
from gradwire.harness.tracking.settings import WandbConfig

Environment = Callable[..., dict[str, str]]


@pytest.fixture
def machine(tmp_path: Path) -> Environment:
    """An environment whose netrc file and settings are in a folder of their own, plus what is given."""
    base = {"NETRC": str(tmp_path / "netrc"), "WANDB_CONFIG_DIR": str(tmp_path)}
    return lambda **variables: base | variables


def test_auto_is_online_where_there_is_a_login(machine: Environment, tmp_path: Path) -> None:
    assert login.choose_mode("auto", machine()) == "offline"
    assert login.choose_mode("auto", machine(WANDB_API_KEY="k")) == "online"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password key\n")
    assert login.choose_mode("auto", machine()) == "online"
    assert login.choose_mode("auto", machine(WANDB_BASE_URL="https://wandb.example:8080")) == "offline"
    (tmp_path / "settings").write_text("[default]\nbase_url = https://own.example\n")
    assert login.server(machine()) == "https://own.example"
    assert login.choose_mode("auto", machine()) == "offline", "the key is another server's"
    for name in ("netrc", "settings"):
        (tmp_path / name).write_text("what is this")
    assert login.choose_mode("auto", machine()) == "offline"


def test_the_environment_decides_for_auto_only(machine: Environment) -> None:
    said = {"offline": "offline", "dryrun": "offline", "run": "online", "DISABLED": "disabled", "": "online"}
    for mode, meant in said.items():
        environment = machine(WANDB_API_KEY="k", WANDB_MODE=mode)
        assert login.choose_mode("auto", environment) == meant
        assert login.choose_mode("offline", environment) == "offline"
    assert login.choose_mode("online", machine(WANDB_MODE="offline")) == "online"


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"mode": "online"}, ["tracking.mode=online", "wandb login", "tracking.mode=offline"]),
        ({"project": "a/b"}, ["tracking.project=a/b", "without / "]),
        ({"project": ""}, ["tracking.project="]),
    ],
)
def test_what_cannot_be_opened_is_refused(
    given: dict[str, str], parts: list[str], machine: Environment
) -> None:
    login.check_tracking(WandbConfig(), machine())
    with pytest.raises(ConfigError) as refused:
        login.check_tracking(WandbConfig(**given), machine())
    for part in parts:
        assert part in str(refused.value)


def test_without_the_package_tracking_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="tracking=wandb needs the package wandb.*tracking=none"):
        validate(compose(["size=tiny", "tracking=wandb"]))
    with pytest.raises(ConfigError, match="needs the package wandb"):
        validate_task(compose(["task=sync", "run=x", "tracking=wandb"]))

"""From command-line overrides to a configuration, with Hydra's refusals in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gradwire.harness.config.errors import ConfigError
from gradwire.harness.config.explain import CONFIG_NAME, check_groups, check_keys, explain
from gradwire.harness.config.manual import register_manual
from gradwire.harness.config.plugins import register_plugins
from gradwire.harness.config.store import register_schemas

VERSION_BASE = "1.3"


def conf_directory() -> Path:
    """The folder of the Hydra groups: beside the packages in a checkout, and in a wheel."""
    folder = Path(__file__).resolve().parents[2] / "conf"
    if not (folder / f"{CONFIG_NAME}.yaml").is_file():
        raise ConfigError(f"{folder}: no {CONFIG_NAME}.yaml; install gradwire again")
    return folder


def parse(overrides: Sequence[str]) -> list[Override]:
    """The parsed overrides; ConfigError names the one Hydra's grammar does not accept."""
    parsed: list[Override] = []
    for text in overrides:
        try:
            parsed += OverridesParser.create().parse_overrides([text])
        except OverrideParseException:
            raise ConfigError(
                f"{text}: cannot be read as key=value; put the value in "
                f"quotes where it holds spaces, commas, brackets or equal signs: 'key=\"a value\"'"
            ) from None
    return parsed


def compose(overrides: Sequence[str] = (), with_hydra: bool = False) -> DictConfig:
    """The configuration that `python run.py <overrides>` would run with, not yet resolved.

    Works inside and outside of Hydra's main, and any number of times. `with_hydra` keeps the
    `hydra` node. Raises ConfigError, in one line, for an unknown group choice or key, a value of the
    wrong type and an override Hydra cannot parse.
    """
    parsed = parse(overrides)
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line} has more than one value; add --multirun to run one after another, "
                f"or put quotes around the value if it is meant to be one"
            )
    prepare()
    register_plugins(parsed)
    with _initialized():
        check_groups(parsed)
        try:
            config = hydra.compose(CONFIG_NAME, list(overrides), return_hydra_config=with_hydra)
        except (HydraException, OmegaConfBaseException) as error:
            raise explain(error, parsed) from None
        check_keys(config, parsed)
    return config


def prepare() -> None:
    """Make known to Hydra what `conf/` refers to; repeating it changes nothing."""
    register_schemas()
    register_manual(conf_directory())


@contextmanager
def _initialized() -> Iterator[None]:
    """Hydra as its main has initialized it, or our own initialization for the time of one call."""
    if GlobalHydra.instance().is_initialized():
        yield
    else:
        with hydra.initialize_config_dir(str(conf_directory()), job_name="run", version_base=VERSION_BASE):
            yield

"""Refusals about decisions: to replay another run's, and to decide by a clock that nobody reads."""

from __future__ import annotations

from gradwire.codecs.decision_file import read_decisions
from gradwire.codecs.registry import make_codec
from gradwire.harness.record.identity import decided_about
from gradwire.harness.record.seal import check_sealed_decisions
from gradwire.harness.runtime.errors import ConfigError, refused_as_config_error
from gradwire.harness.trainer.settings import RunConfig, WorldConfig


def check_decisions(run: RunConfig) -> None:
    """Refuses what a training run cannot replay, and what it cannot decide by."""
    given = run.codec.get("decisions")
    if given is None:
        check_clock(run, ", or add codec.decisions=<file of another run>")
        return
    replayed = refused_as_config_error(read_decisions, given)
    refused_as_config_error(check_sealed_decisions, replayed)
    refused_as_config_error(replayed.check_settings, decided_about(run.mapping()))
    refused_as_config_error(make_codec, **run.codec)


def check_clock(config: WorldConfig, otherwise: str = "") -> None:
    """Refuses a codec that follows the clock where real workers do not write down when they send what.
    `otherwise` says what else would do."""
    measure = config.measure
    if config.cluster.name == "virtual" or (measure.trace and measure.spans):
        return
    if make_codec(**config.codec).traits.clock_driven:
        raise ConfigError(
            f"measure.{'trace' if measure.spans else 'spans'}=false cannot be used with "
            f"codec={config.codec['name']}, whose decisions follow from the times of messages; leave it out"
            f"{otherwise}"
        )

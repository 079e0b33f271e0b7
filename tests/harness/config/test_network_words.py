"""The words that tables, plots and first lines have for a network and its times."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.network.configured import common_text, network_text, recorded_text
from gradwire.harness.timing.measure.metrics import kind_of


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("network=none", "measured (network as it is)"),
        ("cluster=virtual network=none", "modelled, unlimited links"),
        ("network=paced network.rate_mbit=12.5", "emulated, 12.5 Mbit/s, paced"),
        ("network=paced network.latency_s=0.001", "emulated, 200 Mbit/s, 1 ms, paced"),
        ("cluster=virtual network=paced", "modelled, 200 Mbit/s, paced"),
        (
            "network=shaped network.background_jobs=3",
            "emulated, 200 Mbit/s, shaped by the kernel, 3 background jobs",
        ),
        (
            "network=shaped network.rate_changes=[[1,2]]",
            "emulated, 200 Mbit/s, shaped by the kernel, changing rates",
        ),
        ("network=simulated network.background_jobs=1", "modelled, 200 Mbit/s, 1 background job"),
        (
            "network=simulated network.rate_mbit=1000 network.latency_s=0.001",
            "modelled, 1 Gbit/s, 1 ms",
        ),
        ("network=aqgb", "modelled, aqgb, 2.5 Gbit/s, 50 µs, multicast"),
        ("network=simulated network.rate_changes=[[1,2]]", "modelled, 200 Mbit/s, changing rates"),
        (
            "network=sdp4bit_h800 network.background_jobs=2",
            "modelled, sdp4bit_h800, 16 nodes of 8, 8 x 400 Gbit/s, 5 µs, 1600 Gbit/s inside, "
            "2 background jobs",
        ),
        (
            "network=dynamiq_testbed",
            "modelled, dynamiq_testbed, 4 nodes of 2, 100 Gbit/s, 5 µs, 450 Gbit/s inside",
        ),
    ],
)
@pytest.mark.usefixtures("links_can_be_shaped")
def test_a_network_in_words(given: str, said: str) -> None:
    config = validate(compose(["size=tiny", *given.split(" ")]))
    kind = kind_of(config.cluster.name, config.network.name)
    assert network_text(config.network, kind) == said
    assert recorded_text(asdict(config.network), kind) == said


def test_a_record_without_details_is_described_as_far_as_it_goes() -> None:
    assert recorded_text("none", "measured") == "measured (network as it is)"
    assert recorded_text({"name": "shaped"}, "emulated") == "emulated, shaped by the kernel"
    assert recorded_text({"name": "simulated"}, "modelled") == recorded_text(None, "modelled") == "modelled"
    with pytest.raises(ValueError, match="unknown"):
        recorded_text({"name": "carrier_pigeons", "rate_mbit": 1.0}, "measured")


def test_what_several_networks_have_in_common() -> None:
    shaped = ["emulated, 100 Mbit/s, shaped by the kernel", "emulated, 20 Mbit/s, shaped by the kernel"]
    assert common_text(shaped) == "emulated, shaped by the kernel"
    mixed = common_text([*shaped, "modelled, 100 Mbit/s", "measured (network as it is)"])
    assert mixed == "emulated, shaped by the kernel and modelled, 100 Mbit/s and measured (network as it is)"

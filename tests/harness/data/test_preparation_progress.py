"""Long preparations print their progress, short ones print nothing."""

import pytest

from gradwire.harness.data import packing
from gradwire.harness.data.packing import PreparationProgress


@pytest.mark.parametrize(
    ("most", "limit", "left"),
    [(None, "", ("", "")), (50_000_000, " of 50", (", about 30 s left", ", about 20 s left"))],
)
def test_a_line_every_ten_seconds(monkeypatch, capsys, most, limit, left):
    now = [100.0]
    monkeypatch.setattr(packing.time, "monotonic", lambda: now[0])
    shown = PreparationProgress("words, training split", most)
    for number in range(26):
        shown.show(number * 1000, number * 1_250_000)
        now[0] += 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"preparing words, training split: 10000 documents, 12.5{limit} million tokens after 10 s{left[0]}",
        f"preparing words, training split: 20000 documents, 25.0{limit} million tokens after 20 s{left[1]}",
    ]

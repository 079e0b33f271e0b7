"""Parameters that change after `attach`, which DDP's reducer does not notice, and forked children."""

from __future__ import annotations

import re
from typing import Any

import attach_parameters_jobs as jobs
import pytest
from pool import Workers

SAID = {
    "freeze": r"0\.weight was frozen after attach\(\), .*find_unused_parameters=True",
    "replace": r"1\.weight was replaced after the model was wrapped",
    "replace_module": r"1\.weight was replaced after the model was wrapped",
    "add": r"0\.bias was added or unfrozen after the model was wrapped",
    "remove": r"1\.weight was taken out of the model after attach\(\)",
    "convert": r"0\.weight was converted or moved after attach\(\)",
}


@pytest.mark.parametrize("ddp", [{}, {"static_graph": True}, {"find_unused_parameters": True}])
def test_a_parameter_that_ddp_would_not_synchronize_is_named(ddp: dict[str, Any], workers: Workers) -> None:
    legal = {"freeze", "remove"} if "find_unused_parameters" in ddp else set()
    names = list(jobs.CHANGES)
    for found in workers(2)(jobs.changed, names, ddp, None):
        for name, text in zip(names, found, strict=True):
            if name in legal or name not in SAID:
                assert text == "alike", name
            else:
                assert re.search(rf"^SynchronizationError: rank \d, step 2: {SAID[name]}", text), text
                assert "\n" not in text


def test_the_other_ranks_learn_what_one_has_changed(workers: Workers) -> None:
    (other,), (own,) = workers(2)(jobs.changed, ["freeze"], {}, 1)
    assert re.search(SAID["freeze"], own), own
    assert re.search(rf"rank 1 had failed: {SAID['freeze']}", other), other


def test_passes_that_are_not_synchronized_may_do_what_they_like(workers: Workers) -> None:
    for evaluated, alone, functional, copied in workers(2)(jobs.unchanged):
        assert (evaluated, alone, functional) == ("nothing",) * 3
        assert copied.startswith("TypeError: a model with a codec cannot be pickled or copied")


def test_a_model_that_has_changed_since_it_was_wrapped_is_refused(workers: Workers) -> None:
    words = [
        *(
            f"the model trains {now} parameters, and trained {then} when"
            for now, then in [(1, 2), (3, 2), (1, 2)]
        ),
        "the model's parameters have 64 bytes, and had 128 when it was wrapped; convert it before",
    ]
    for found in workers(2)(jobs.before_attach):
        for text, expected in zip(found, words, strict=True):
            assert text.startswith(f"ValueError: attach(): {expected}"), text


def test_a_forked_child_may_not_synchronize(workers: Workers) -> None:
    for *children, itself in workers(2)(jobs.forked):
        for text in children:
            assert text.startswith("RuntimeError: this process was forked from a rank and has none of its")
        assert itself == "alike"

"""The first screen tells a reader a sentence a paper, counted from its verdicts."""

from __future__ import annotations

import pytest

from gradwire.harness.report.claims.claim import Basis, Claim
from gradwire.harness.report.claims.verdict import Reason, Verdict, Word
from gradwire.harness.report.evaluations import CLAIMS
from gradwire.harness.report.papers import Paper, read_papers
from gradwire.harness.report.summary import MOST_TOPICS, OTHERS, Outcome
from gradwire.harness.runtime.conf import conf_directory

RESULTS = conf_directory().parent / "results"
TOPICS = {"time to accuracy": ["P1", "P2"], "error": ["P3*", "P4"]}


def verdict(name: str, word: Word, reason: Reason | None = None, basis: Basis = Basis.RUNS) -> Verdict:
    return Verdict(Claim(name, "A Paper", "Table 1", "It is so.", basis=basis), word, reason=reason)


def test_one_sentence_says_what_holds_what_does_not_and_what_could_not_be_tried() -> None:
    verdicts = [
        verdict("P1", Word.REPRODUCED),
        verdict("P2", Word.NOT_TESTABLE, Reason.CHANCE),
        verdict("P3a", Word.NOT_REPRODUCED),
        verdict("P3b", Word.LATE_NOT_REPRODUCED),
        verdict("P4", Word.NOT_TESTABLE, Reason.SPREAD),
        verdict("P5", Word.NOT_RUN, basis=Basis.NOTHING),
        verdict("P6", Word.CONSISTENT, basis=Basis.PAPER),
        verdict("P7", Word.BY_CONSTRUCTION, basis=Basis.MODEL),
    ]
    found = Outcome(verdicts, TOPICS)
    assert found.sentence == (
        "Of 6 claims about runs 1 holds: time to accuracy (1 of 2); 2 do not: error (2 of 3); "
        "2 could not be told here: time to accuracy (1 of 2), error (1 of 3) "
        "(why: at chance 1, effect below the seeds' spread 1); 1 has not run: other claims (1 of 1)."
    )
    assert (found.held, found.failed, found.untold, found.not_run) == (1, 2, 2, 1)
    assert found.itself == (1, 0) and found.identities == 1
    assert [what for what, _ in found.parts] == [
        "What holds",
        "What does not",
        "What could not be told here",
        "What has not run",
    ]


def test_a_paper_without_verdicts_says_so() -> None:
    assert Outcome([], TOPICS).sentence == "Of 0 claims about runs none is decided."


def test_the_first_screen_names_the_most_frequent_topics() -> None:
    topics = {f"topic {index}": [f"P{index}*"] for index in range(1, 6)}
    verdicts = [
        verdict(f"P{index}{letter}", Word.REPRODUCED) for index in range(1, 6) for letter in "abcde"[:index]
    ]
    ((_, said),) = Outcome(verdicts, topics).parts
    assert said == "15: topic 5 (5 of 5), topic 4 (4 of 4), topic 3 (3 of 3), and 3 more" and MOST_TOPICS == 3


@pytest.mark.parametrize("paper", read_papers(RESULTS), ids=lambda each: each.name)
def test_nearly_every_claim_about_runs_has_a_topic_and_every_topic_a_claim(paper: Paper) -> None:
    claims = [claim for each in CLAIMS if each.paper == paper.name for claim in each.found]
    outcome = Outcome([Verdict(claim, Word.NOT_RUN) for claim in claims], paper.topics)
    topics = [outcome._topic(each) for each in outcome.tried]
    assert topics.count(OTHERS) <= len(topics) / 5
    assert set(paper.topics) <= set(topics)


def test_papers_have_their_order_and_a_picture() -> None:
    papers = read_papers(RESULTS)
    assert [paper.name for paper in papers] == ["DynamiQ", "SDP4Bit", "EDGC", "AQGB"]
    assert all(paper.picture for paper in papers)

"""AQGB's claims, and what would have to hold in the records of our sweeps."""

from __future__ import annotations

from typing import Any

from gradwire.harness.report.claims.claim import Claims
from gradwire.harness.report.claims.evidence import (
    Evidence,
    above,
    below,
    every,
    falls,
    near,
    rises,
    sooner,
    within,
)
from gradwire.harness.report.evaluation import SeedFigure

aqgb = Claims("AQGB")


def rounds_to_accuracy(e: Evidence, **codec: Any) -> SeedFigure:
    """Steps to 0.95 times the uncompressed accuracy, counted, as of the evaluation that gets there."""
    return e.steps_to(0.95, **codec)


def rounds(e: Evidence, scheme: str) -> float:
    """Rounds in 200 s of the simulated study, without jitter."""
    return e.rounds(sweep="aqgb_fig10", scheme=scheme, jitter=0, split=4).mean


# AQGB between processes, on shaped links (future work in the paper)

shaped = aqgb.on("aqgb_shaped")


@shaped("A1s", "Abstract, for a real trainer", "3.15 and 1.24 times as fast, simulated")
def _(e: Evidence) -> bool:
    """AQGB gets to 1.1 times BF16's perplexity sooner than without compression and than 4 bits, with
    every seed."""
    return every(sooner(e, 1.1, "aqgb", other) for other in ("fp32", "tfp"))


@shaped("A1t", "Abstract, for a real trainer", "3.15 times as fast, simulated")
def _(e: Evidence) -> bool:
    """AQGB gets to 1.1 times BF16's perplexity sooner than without compression, with every seed."""
    return sooner(e, 1.1, "aqgb", "fp32")


@shaped("A8s", "Figure 10, for a real trainer", "a plot, no number")
def _(e: Evidence) -> bool:
    """AQGB has the highest ROW and waits less than without compression, with every seed."""
    return every(
        above(e.row(codec="aqgb"), e.row(codec="tfp")),
        above(e.row(codec="aqgb"), e.row(codec="fp32")),
        below(e.wait_s(codec="aqgb"), e.wait_s(codec="fp32")),
    )


@shaped("A8t", "Figure 10(c), for a real trainer", "a plot, no number")
def _(e: Evidence) -> bool:
    """AQGB's T_wait is near that of 4 bits (within a quarter)."""
    return within(e.wait_s(codec="aqgb"), e.wait_s(codec="tfp"), 0.25)


# AQGB's simulated study (Figures 3, 9, 10, 12 to 14), task=simulate

fig9 = aqgb.on("aqgb_fig9")


@fig9("A5", "Section 5.2.1, Figure 9", "a plot, no number")
def _(e: Evidence) -> bool:
    """The ratio follows the links' rate, within three rounds of each change, with every seed."""
    return every(
        above(
            e.q_ratio_first(floor=0.125, case="2 from 50 s"), e.q_ratio_first(floor=0.125, case="1 from 0 s")
        ),
        below(
            e.q_ratio_first(floor=0.125, case="0.5 from 100 s"),
            e.q_ratio_first(floor=0.125, case="1 from 150 s"),
        ),
        every(
            c.followed_after(floor=0.125).high <= 3
            for c in e.each(case=("2 from 50 s", "0.5 from 100 s", "1 from 150 s"))
        ),
    )


@fig9("A5a", "Section 5.2.1, Figure 9", "0.375")
def _(e: Evidence) -> bool:
    """With the floor of 0.375 that Figure 9 names the ratio follows a doubled rate, and is near the
    floor otherwise (within 10 %)."""
    return every(
        above(
            e.q_ratio_first(floor=0.375, case="2 from 50 s"), e.q_ratio_first(floor=0.375, case="1 from 0 s")
        ),
        every(
            within(c.q_ratio_first(floor=0.375), 0.375, 0.1)
            for c in e.each(case=("1 from 0 s", "0.5 from 100 s", "1 from 150 s"))
        ),
    )


fig10 = aqgb.on("aqgb_fig10")


@fig10("A6", "Section 5.2.2, Figure 10(a)", "127")
def _(e: Evidence) -> bool:
    """AQGB completes 127 rounds in 200 s (within one, without jitter)."""
    return near(e.rounds(scheme="aqgb", jitter=0, split=4), 127, 1)


@fig10("A6a", "Section 5.2.2, Figure 10(a)", "39")
def _(e: Evidence) -> bool:
    """Without compression there are 39 rounds (within one, without jitter; 38 are complete)."""
    return near(e.rounds(scheme="none", jitter=0, split=4), 39, 1)


@fig10("A6b", "Section 5.2.2, Figure 10(a)", "130")
def _(e: Evidence) -> bool:
    """With 4 bits there are 130 rounds (within one, without jitter). Table 1's first block of 3 million
    parameters leaves time for 127, because its 15 broadcasts take 72 ms of a round."""
    return near(e.rounds(scheme="fixed", jitter=0, split=4), 130, 1)


printed = aqgb.on()


@printed("A6c", "Section 5.2.2, Figure 10(a), Table 1", "130")
def _(e: Evidence) -> bool:
    """No more than 127 rounds of 1.5 s and 15 broadcasts of 3 million values at 4 bits fit into 200 s at
    2.5 Gbit/s."""
    return 1 + (200 - 1.5) / (1.5 + 15 * 3000000.0 * 4 / 2500000000.0) < 128


@fig10("A6d", "Section 5.2.2, Figure 10(a)", "127 / 130 = 0.98")
def _(e: Evidence) -> bool:
    """With jitter AQGB completes at least 0.95 times the rounds of 4 bits, with a factor for each pass
    and block and with one a round."""
    return every(
        p.rounds(scheme="aqgb", jitter=0.1) / p.rounds(scheme="fixed", jitter=0.1) >= 0.95
        for p in e.each(jitter_per=("block", "step"))
    )


@fig10("A7", "Section 5.2.2, Figure 10(b)", "77 %, 90 %")
def _(e: Evidence) -> bool:
    """Links are used to about 77 % with AQGB and 90 % without compression (within 4 points, with
    jitter)."""
    e = e.where(jitter=0.1, jitter_per="block")
    return every(
        near(e.utilization(scheme="aqgb"), 0.77, 0.04), near(e.utilization(scheme="none"), 0.9, 0.04)
    )


@fig10("A7a", "Section 5.2.2, Figure 10(b)", "less than half")
def _(e: Evidence) -> bool:
    """4 bits use less than half of the links that AQGB uses. By the closed form they use 39 %, half of
    78 %."""
    e = e.where(jitter=0.1, jitter_per="block")
    return e.utilization(scheme="fixed") < 0.5 * e.utilization(scheme="aqgb")


@fig10("A8", "Section 5.2.2, Figure 10(c)", "a plot, no number")
def _(e: Evidence) -> bool:
    """AQGB's T_wait is near that of 4 bits, by no more than a tenth of what separates them from no
    compression."""
    e = e.where(jitter=0.1, jitter_per="block")
    return e.t_wait(scheme="aqgb") - e.t_wait(scheme="fixed") <= 0.1 * (
        e.t_wait(scheme="none") - e.t_wait(scheme="fixed")
    )


@fig10("A8a", "Section 5.2.2, Figure 10(d)", "a plot, no number")
def _(e: Evidence) -> bool:
    """AQGB has the highest ROW, with every seed and both kinds of jitter."""
    return every(
        above(p.row(scheme="aqgb", jitter=0.1), p.row(scheme=s, jitter=0.1))
        for p in e.each(jitter_per=("block", "step"))
        for s in ("none", "fixed")
    )


fig12 = aqgb.on("aqgb_fig12")


@fig12("A10", "Section 5.2.4, Figure 12", "a plot, no number")
def _(e: Evidence) -> bool:
    """Without compression, faster links are used less, T_wait falls and rounds rise, at each of eight
    rates."""
    return every(
        falls(r.utilization(scheme="none") for r in e.each("rate_mbit")),
        falls(r.t_wait(scheme="none") for r in e.each("rate_mbit")),
        rises(r.rounds(scheme="none") for r in e.each("rate_mbit")),
    )


@fig12("A10a", "Section 5.2.4, Figure 12(b)", "a plot, no number")
def _(e: Evidence) -> bool:
    """With 4 bits and with AQGB faster links are used less, too, and AQGB uses more of them than 4 bits
    at each rate."""
    return every(
        falls(r.utilization(scheme="fixed") for r in e.each("rate_mbit")),
        falls(r.utilization(scheme="aqgb") for r in e.each("rate_mbit")),
        every(
            above(r.utilization(scheme="aqgb"), r.utilization(scheme="fixed")) for r in e.each("rate_mbit")
        ),
    )


@fig12("A10b", "Section 5.2.4, Figure 12(d)", "a plot, no number")
def _(e: Evidence) -> bool:
    """AQGB's ROW falls with the rate once communication is no bottleneck, here from 8 to 10 Gbit/s, and
    is the highest at each rate."""
    return every(
        below(e.row(scheme="aqgb", rate_mbit=10000), e.row(scheme="aqgb", rate_mbit=8000)),
        every(
            above(r.row(scheme="aqgb"), r.row(scheme=s))
            for r in e.each("rate_mbit")
            for s in ("none", "fixed")
        ),
    )


fig13 = aqgb.on("aqgb_fig13")


@fig13("A11", "Section 5.2.5, Figure 13(a)", "125.6 %, 118.0 %")
def _(e: Evidence) -> bool:
    """With stragglers 4 bits complete 125.6 % and AQGB 118.0 % more rounds than no compression (within
    15 points)."""
    e = e.where(straggler_share=0.165)
    return every(
        near(e.rounds(scheme="fixed") / e.rounds(scheme="none"), 2.256, 0.15),
        near(e.rounds(scheme="aqgb") / e.rounds(scheme="none"), 2.18, 0.15),
    )


@fig13("A11a", "Section 5.2.5, Figure 13(c), (d)", "almost an order of magnitude")
def _(e: Evidence) -> bool:
    """With stragglers AQGB's T_wait is longer and its ROW lower by almost an order of magnitude (a
    factor of at least 5)."""
    e = e.where(scheme="aqgb")
    return every(
        e.t_wait(straggler_share=0.165) >= 5 * e.t_wait(compute_s=1.5),
        5 * e.row(straggler_share=0.165) <= e.row(compute_s=1.5),
    )


fig14 = aqgb.on("aqgb_fig14")


@fig14("A12", "Section 5.2.6, Figure 14", "a plot, no number")
def _(e: Evidence) -> bool:
    """More blocks, from 3 to 6, give a few more rounds (at most a tenth) and a higher ROW each time."""
    return every(
        rises(b.row(scheme="aqgb", jitter=0.1) for b in e.each(split=(1, 3, 4, 5, 6))),
        rises(b.rounds(scheme="aqgb", jitter=0.1) for b in e.each(split=(3, 4, 5, 6))),
        e.rounds(split=6, scheme="aqgb", jitter=0.1) <= 1.1 * e.rounds(split=3, scheme="aqgb", jitter=0.1),
    )


@fig14("A12a", "Section 5.2.6, Figure 14", "a plot, no number")
def _(e: Evidence) -> bool:
    """Rounds are between those of no split and those of the ideal without a wait, with every seed."""
    e = e.where(jitter=0.1)
    return every(
        every(
            above(e.rounds(split=b, scheme="aqgb"), e.rounds(split=1, scheme="aqgb")) for b in (3, 4, 5, 6)
        ),
        every(below(e.rounds(split=b, scheme="aqgb"), e.rounds(scheme="ideal")) for b in (3, 4, 5, 6)),
    )


fig3 = aqgb.on("aqgb_fig3")


@fig3("A13", "Section 3.1", "OSF = T_comp / (T_comp + T_wait)")
def _(e: Evidence) -> bool:
    """Without overlap with the forward pass (one block) OSF is 1 / (1 + T_wait), so that it orders as
    T_wait does."""
    return every(
        every(
            near(b.osf(split=1, scheme="fixed"), 1 / (1 + b.t_wait(split=1, scheme="fixed")), 0.001)
            for b in e.each(bits=(2, 4, 8, 16, 32))
        ),
        falls(b.osf(split=1, scheme="fixed") for b in e.each(bits=(2, 4, 8, 16, 32))),
        rises(b.t_wait(split=1, scheme="fixed") for b in e.each(bits=(2, 4, 8, 16, 32))),
    )


@fig3("A14", "Section 3.2, Figure 3", "by example")
def _(e: Evidence) -> bool:
    """ROW tells too much compression (2 bits) and too little (16 bits) from AQGB's; T_wait does not: it
    is the shorter the fewer the bits are."""
    return every(
        e.row(scheme="aqgb") > e.row(scheme="fixed", bits=2, split=4),
        e.row(scheme="aqgb") > e.row(scheme="fixed", bits=16, split=4),
        e.t_wait(scheme="fixed", bits=2, split=4) < e.t_wait(scheme="aqgb"),
        rises(b.t_wait(scheme="fixed", split=4) for b in e.each(bits=(2, 4, 8, 16, 32))),
    )


@aqgb.on("aqgb_fig12", "aqgb_fig13", "aqgb_fig9")("A17", "Section 4.3.1", "4 of 32 bits")
def _(e: Evidence) -> bool:
    """No value has fewer bits than the floor, at any rate, with stragglers and as rates change."""
    return every(
        every(r.least_bits(scheme="aqgb").low >= 4 for r in e.each("rate_mbit")),
        e.least_bits(sweep="aqgb_fig13", scheme="aqgb", straggler_share=0.165).low >= 4,
        e.least_bits(sweep="aqgb_fig9", floor=0.375).low >= 12,
    )


# AQGB's training (Figures 2 and 11, Table 2): a small ResNet on a sample of CIFAR-10


@aqgb.on("aqgb_fig2_table2", "aqgb_fig10")("A1", "Abstract, Table 2", "3.15 times as fast")
def _(e: Evidence) -> bool:
    """ "Actual speed-up", measured convergence (rounds to 0.95 of the uncompressed accuracy) times
    simulated acceleration (rounds in 200 s), is 3.15 for AQGB against no compression (within 15 %, in
    the mean of paired seeds)."""
    speed_up = (rounds_to_accuracy(e, codec="fp32") / rounds_to_accuracy(e, codec="aqgb")).mean
    return within(speed_up * rounds(e, "aqgb") / rounds(e, "none"), 3.15, 0.15)


@aqgb.on("aqgb_fig2_table2", "aqgb_fig10")("A1a", "Abstract, Table 2", "3.15 / 2.54 = 1.24")
def _(e: Evidence) -> bool:
    """AQGB's "actual speed-up", so reckoned, is at least 1.1 times that of QSGD at 4 bits, in the mean
    of paired seeds."""
    speed_up = (rounds_to_accuracy(e, codec="qsgd", bits=4) / rounds_to_accuracy(e, codec="aqgb")).mean
    return speed_up * rounds(e, "aqgb") / rounds(e, "fixed") >= 1.1


fig2_table2 = aqgb.on("aqgb_fig2_table2")


@fig2_table2("A2", "Section 2.2, Figure 2(a)", "a plot, no number")
def _(e: Evidence) -> bool:
    """TFP ends at QSGD's accuracy or above with 4 bits and with 8 (no more than 0.01 below, in the mean
    of paired seeds)."""
    return every(
        (b.last("accuracy", codec="tfp") - b.last("accuracy", codec="qsgd")).mean >= -0.01
        for b in e.each(bits=(4, 8))
    )


@fig2_table2("A3", "Section 2.2, Figure 2(a)", "a plot, no number")
def _(e: Evidence) -> bool:
    """Without error feedback QSGD at 4 bits ends at a worse accuracy than without compression, with
    every seed."""
    return below(e.last("accuracy", codec="qsgd", bits=4), e.last("accuracy", codec="fp32"))


@fig2_table2("A3a", "Section 2.2, Figure 2(a)", "a plot, no number")
def _(e: Evidence) -> bool:
    """1-bit SGD, with error feedback, ends at a worse accuracy than without compression, with every
    seed."""
    return below(e.last("accuracy", codec="onebit"), e.last("accuracy", codec="fp32"))


fig2b = aqgb.on("aqgb_fig2b")


@fig2b("A4", "Section 2.2, Figure 2(b)", "a plot, no number")
def _(e: Evidence) -> bool:
    """With Adam and error feedback, QSGD of 2 or 8 bits by chance ends at a worse accuracy than without
    compression, with every seed (here a small ResNet instead of ResNeXt101)."""
    return below(e.last("accuracy", codec="qsgd", bits="[2, 8]"), e.last("accuracy", codec="fp32"))


@fig2_table2("A9", "Table 2", "85.36 > 84.69 > 82.94 %")
def _(e: Evidence) -> bool:
    """The accuracies of no compression, AQGB and QSGD at 4 bits fall in this order, in the mean of
    paired seeds."""
    return every(
        e.last("accuracy", codec="fp32").mean > e.last("accuracy", codec="aqgb").mean,
        e.last("accuracy", codec="aqgb").mean > e.last("accuracy", codec="qsgd", bits=4).mean,
    )


@fig2_table2("A9a", "Table 2, Section 5.2.3", "0.67 points")
def _(e: Evidence) -> bool:
    """AQGB's accuracy is at most one point below that without compression, in the mean of paired seeds."""
    return (e.last("accuracy", codec="fp32") - e.last("accuracy", codec="aqgb")).mean <= 0.01


@fig2_table2("A18", "Section 5.2.3, Table 2", "+1.75 points")
def _(e: Evidence) -> bool:
    """AQGB's accuracy is at least 1.75 points above that of QSGD at 4 bits, in the mean of paired seeds
    (the text prints 2.75)."""
    return (e.last("accuracy", codec="aqgb") - e.last("accuracy", codec="qsgd", bits=4)).mean >= 0.0175

"""The papers' claims as predicates over sweeps' records, a file or two for each paper, and the verdicts."""

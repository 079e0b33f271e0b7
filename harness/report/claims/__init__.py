"""Claims of the papers as predicates over sweeps' records, and the verdicts on them."""

"""AQGB: gradients are broadcast at a ratio that follows the network, and refined while there is time.

Reading order: `codec` (the settings and a round), `encoding` (the numbers that are cut), `payload` (the bytes
sent, and the packets that hold them), `rounding` (random, and refinable), `pieces` (of a block, and their
refinement), `plan` (what a rank observes, and what all ranks decide from it), `decision` (which decisions a
file may have).
"""

"""AQGB: gradients are broadcast at a ratio that follows the network, and refined while there is time.

Reading order: `codec` (the settings and a round), `payload` (the bytes sent), `packets` (how they are cut),
`profile` (what a rank observes), `plan` (what all ranks decide from it).
"""

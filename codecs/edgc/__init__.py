"""EDGC: ranks of compressed gradients that follow the entropies of some of their coordinates."""

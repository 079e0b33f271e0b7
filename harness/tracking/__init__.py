"""The display of runs in wandb. The record on disk is authoritative; `task=sync` recreates the view from
it.
"""

"""Sharded data parallelism: every rank holds the model, and updates a shard of its weights.

Megatron-LM's distributed optimizer (ZeRO's first stage), as SDP4Bit and ZeRO++ compress it: gradients are
scattered, and weights, or what has changed of them, are gathered.
"""

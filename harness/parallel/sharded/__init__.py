"""Sharded data parallelism: every rank holds the model, and updates a shard of its weights.

This is Megatron-LM's distributed optimizer (ZeRO's first stage) with the compression of SDP4Bit and ZeRO++:
gradients are reduce-scattered, and weights, or their changes, are gathered.
"""

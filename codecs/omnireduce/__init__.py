"""OmniReduce: the blocks that any worker finds large are summed in bfloat16 (see `codec`)."""

from gradwire.codecs.omnireduce.codec import OmniReduce

__all__ = ["OmniReduce"]

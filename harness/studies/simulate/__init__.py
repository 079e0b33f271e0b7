"""`task=simulate`: rounds of training whose gradients are broadcast in blocks (AQGB §5), without tensors."""

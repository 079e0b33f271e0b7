"""The smallest model that still has several buckets: what whole runs in the tests train."""

TINY_MODEL = (
    "size=tiny",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.num_kv_heads=2",
    "model.intermediate_size=64",
    "model.vocab_size=512",
    "dataset.sequence_length=32",
    "train.warmup_steps=1",
    "train.micro_batch=2",
    "eval.every=2",
    "measure.vnmse_every=2",
    "parallel.bucket_cap_mb=0.02",
)

"""Other programs' names of this project's keys and choices, for suggestions in refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ALIASES = {
    "train.lr": ("learning_rate", "lr", "base_lr", "max_lr", "peak_lr"),
    "train.steps": (
        "max_steps",
        "num_steps",
        "iterations",
        "train_iters",
        "num_iterations",
        "steps",
        "iters",
    ),
    "train.epochs": ("num_train_epochs", "num_epochs", "max_epochs", "epochs", "epoch"),
    "train.micro_batch": (
        *("batch_size", "per_device_train_batch_size", "micro_batch_size", "train_batch_size", "bs"),
        *("micro_batch", "local_batch_size"),
    ),
    "train.batch": ("global_batch_size", "global_batch", "total_batch_size", "batch"),
    "train.accumulation": ("gradient_accumulation_steps", "grad_accum", "accumulation_steps", "accumulate"),
    "train.weight_decay": ("weight_decay", "wd"),
    "train.beta1": ("adam_beta1", "beta_1"),
    "train.beta2": ("adam_beta2", "beta_2"),
    "train.adam_epsilon": ("adam_eps", "epsilon", "eps"),
    "train.warmup_steps": ("warmup", "num_warmup_steps", "warmup_iters", "lr_warmup_steps"),
    "train.optimizer": ("optim", "optimizer"),
    "train.momentum": ("sgd_momentum", "momentum"),
    "train.decay_factor": ("gamma", "lr_gamma"),
    "train.decay_epochs": ("step_size", "lr_step_size"),
    "train.schedule": ("lr_scheduler", "lr_scheduler_type", "scheduler", "lr_schedule"),
    "train.clip_norm": ("max_grad_norm", "grad_clip", "clip_grad", "gradient_clip_val", "max_norm", "clip"),
    "train.precision": ("dtype", "mixed_precision", "precision", "amp", "fp16"),
    "train.log_every": ("logging_steps", "log_interval", "log_every_n_steps"),
    "train.checkpoint_every": ("save_steps", "checkpoint_interval", "save_every", "save_interval"),
    "train.keep_checkpoints": ("save_total_limit", "keep_last"),
    "eval.every": ("eval_steps", "eval_interval", "val_check_interval", "evaluation_interval"),
    "eval.micro_batch": ("per_device_eval_batch_size", "eval_batch_size"),
    "eval.max_sequences": ("max_eval_samples", "eval_samples"),
    "model.num_layers": ("n_layer", "n_layers", "layers", "num_hidden_layers", "depth", "num_layers"),
    "model.hidden_size": ("n_embd", "d_model", "dim", "embed_dim", "hidden_dim", "width", "hidden_size"),
    "model.num_heads": ("n_head", "n_heads", "num_attention_heads", "heads", "num_heads"),
    "model.num_kv_heads": ("n_kv_heads", "num_key_value_heads"),
    "model.intermediate_size": ("ffn_dim", "d_ff", "mlp_dim", "ffn_hidden_size", "n_inner"),
    "model.context": ("n_positions", "max_position_embeddings", "context_length", "n_ctx"),
    "model.pretrained": ("model_name_or_path", "model_name", "checkpoint"),
    "dataset.sequence_length": ("seq_len", "seq_length", "max_seq_len", "block_size", "max_length"),
    "dataset.path": ("train_file", "data_path", "data_dir", "dataset_path", "data"),
    "dataset.hub": ("dataset_name", "hf_dataset"),
    "cluster.workers": (
        *("world_size", "nproc", "nproc_per_node", "num_workers", "n_workers", "workers", "gpus", "ranks"),
        *("num_processes", "devices", "num_gpus"),
    ),
    "cluster.timeout_s": ("timeout", "ddp_timeout"),
    "cluster.device": ("device", "accelerator"),
    "network.rate_mbit": ("bandwidth", "rate", "bandwidth_mbit", "link_rate", "mbit"),
    "network.latency_s": ("latency", "delay"),
    "network.nodes": ("num_nodes", "nnodes"),
    "cluster.ranks_per_node": (
        *("gpus_per_node", "local_size", "tasks_per_node", "local_world_size", "ranks_per_node", "nodes"),
    ),
    "parallel.bucket_cap_mb": ("bucket_size", "bucket_mb", "bucket_size_mb"),
    "codec.bits": ("bit_budget", "num_bits", "bitwidth", "bit_width", "bits"),
    "codec.ef": ("error_feedback", "memory"),
    "codec": ("compressor", "compression", "quantizer", "compress"),
    "topology": ("algorithm", "collective", "allreduce_algorithm"),
    "seed": ("random_seed", "manual_seed", "rng_seed"),
    "resume": ("resume_from_checkpoint", "restart"),
    "tracking.project": ("wandb_project",),
    "tracking": ("report_to", "logger", "wandb"),
    "hydra.run.dir": ("output_dir", "output", "out", "log_dir", "run_dir", "out_dir", "logdir", "save_dir"),
}
"""Other programs' names of a key, in whatever group they are written."""

CHOICE_ALIASES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "size": {
        "paper": ("full", "real", "large", "big", "huge", "base", "xl", "original", "max"),
        "gpu": ("medium", "125m", "cuda"),
        "small": ("little", "cpu"),
        "tiny": ("mini", "nano", "test", "debug", "toy", "smoke", "demo", "xs", "min"),
    },
    "codec": {
        "fp32": ("none", "no", "off", "false", "null", "identity", "baseline", "float32", "uncompressed"),
        "bf16": ("fp16", "float16", "half", "bfloat16"),
        "mxfp8": ("fp8", "float8", "e4m3", "e5m2"),
        "mxfp4": ("fp4", "nvfp4"),
        "uniform": ("int8", "int4", "quantization", "quantize", "8bit", "4bit"),
        "onebit": ("signsgd", "sign", "1bit", "efsignsgd"),
        "topk": ("sparse", "sparsification", "dgc"),
        "terngrad": ("ternary",),
        "powersgd": ("lowrank", "low_rank"),
        "backend": ("nccl", "gloo", "native"),
    },
    "topology": {
        "butterfly": ("tree", "recursive", "hypercube", "halving_doubling", "rhd", "binary"),
        "two_level": ("hierarchical", "2level", "nodes", "two_tier"),
        "broadcast": ("star", "ps", "parameter_server", "naive", "all_gather", "allgather", "direct"),
        "ring": ("allreduce", "all_reduce", "nccl", "chain"),
    },
    "network": {
        "none": ("local", "loopback", "real", "off", "false"),
        "simulated": ("virtual", "modelled", "simulation", "model"),
        "paced": ("slow", "emulated", "ethernet", "10gbit", "1gbit", "limited", "throttled"),
        "shaped": ("tc", "netem", "netns"),
    },
    "parallel": {
        "ddp": ("dp", "data", "data_parallel", "none"),
        "sharded": ("fsdp", "fsdp2", "zero", "zero1", "zero2", "zero3", "deepspeed", "shard"),
        "pipeline": ("pp", "1f1b", "gpipe"),
    },
    "cluster": {
        "local": ("real", "gpu", "cpu", "slurm", "torchrun", "processes"),
        "virtual": ("simulated", "sim", "fake", "emulated"),
    },
    "kernels": {"cuda": ("gpu", "triton"), "cpu": ("c++", "cpp"), "default": ("none", "torch", "python")},
    "tracking": {
        "wandb": ("true", "yes", "on", "tensorboard", "mlflow", "w&b", "weights_and_biases"),
        "none": ("false", "no", "off", "disabled", "null"),
    },
    "dataset": {"embedded": ("shakespeare", "tiny", "synthetic", "builtin", "dummy", "random")},
    "model": {
        "gpt2": ("gpt", "transformer", "nanogpt", "gpt2_small"),
        "llama1b": ("llama", "llama3"),
        "gemma1b": ("gemma",),
        "bert_large": ("bert",),
        "resnet50": ("resnet", "cnn"),
        "smollm2": ("smollm",),
        "minilm_glue": ("minilm",),
    },
    "experiment": {"smoke": ("test", "quick", "tiny")},
    "sweeps": {"demo": ("test", "example")},
    "task": {
        "train": ("run", "fit", "training"),
        "predict": ("estimate", "forecast"),
        "score": ("eval", "evaluate", "benchmark", "lm_eval"),
        "bench": ("microbenchmark", "speed"),
        "timeline": ("trace", "profile"),
        "report": ("plot", "plots", "compare"),
        "doctor": ("check", "info", "env"),
        "weights": ("fetch", "download", "pretrained"),
    },
}
"""Other programs' names of a group's choice."""

_KEY_OF = {name: key for key, names in ALIASES.items() for name in names}


def alias_of(key: str) -> str | None:
    """The key for which the last part of an unknown `key` is another name, if any."""
    return _KEY_OF.get(key.rsplit(".", 1)[-1].lower().replace("-", "_"))


def choice_alias_of(group: str, word: str) -> str | None:
    """The choice of a group for which `word` is another name, if any."""
    wanted = word.lower().replace("-", "_")
    found = CHOICE_ALIASES.get(group, {}).items()
    return next((choice for choice, names in found if wanted in names), None)

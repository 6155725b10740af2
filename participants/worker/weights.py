"""The weights of a Llama: made from a seed, or kept in a folder as Hugging Face's libraries have it.

A folder holds `config.json` and `model.safetensors`, with the names of `LlamaForCausalLM`: transformers and vLLM load
what was saved here, and what they saved is loaded here as far as `shape_of` knows its options.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..inference.tokens import VOCABULARY_SIZE
from .refusals import WeightsRefused

CONFIG, TENSORS = "config.json", "model.safetensors"
SPREAD = 0.2
"""Standard deviation of random weights: wide enough that the likeliest token is seldom a close call."""
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama."""

    hidden: int = 256
    inner: int = 512
    """Of the feed-forward part."""
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 32
    context: int = 32_768
    """Tokens of prompt and output together."""
    rope_base: float = 10_000.0
    epsilon: float = 1e-6

    def sizes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The name and size of every tensor."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        yield EMBEDDING, (VOCABULARY_SIZE, self.hidden)
        for n in range(self.layers):
            layer = f"model.layers.{n}."
            yield layer + "input_layernorm.weight", (self.hidden,)
            yield layer + "self_attn.q_proj.weight", (queries, self.hidden)
            yield layer + "self_attn.k_proj.weight", (keys, self.hidden)
            yield layer + "self_attn.v_proj.weight", (keys, self.hidden)
            yield layer + "self_attn.o_proj.weight", (self.hidden, queries)
            yield layer + "post_attention_layernorm.weight", (self.hidden,)
            yield layer + "mlp.gate_proj.weight", (self.inner, self.hidden)
            yield layer + "mlp.up_proj.weight", (self.inner, self.hidden)
            yield layer + "mlp.down_proj.weight", (self.hidden, self.inner)
        yield FINAL_NORM, (self.hidden,)
        yield HEAD, (VOCABULARY_SIZE, self.hidden)

    def config(self) -> dict[str, Any]:
        """As `config.json` says it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY_SIZE,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_base,
            "rms_norm_eps": self.epsilon,
            "initializer_range": SPREAD,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "float32",
        }


@dataclass(frozen=True, slots=True)
class Weights:
    """A model that can be run."""

    shape: Shape
    tensors: Tensors
    """Every one of `shape.sizes()`, float32."""


def make(seed: int, shape: Shape | None = None) -> Weights:
    """Random weights; the same seed gives the same ones on every machine. Takes a tenth of a second."""
    shape = shape or Shape()
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(size, generator=generator) * SPREAD if len(size) > 1 else torch.ones(size)
        for name, size in shape.sizes()
    }
    return Weights(shape, tensors)


def save(weights: Weights, folder: Path) -> None:
    """Write a folder that `load`, transformers and vLLM read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(weights.shape.config(), indent=2) + "\n", encoding="utf-8")
    save_file(dict(weights.tensors), folder / TENSORS, metadata={"format": "pt"})


def load(folder: Path) -> Weights:
    """Read a folder; WeightsRefused says what is missing in it or not known here."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        found = load_file(folder / TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise WeightsRefused(folder, str(error)) from error
    try:
        shape = shape_of(config)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WeightsRefused(folder, f"{CONFIG}: {error!r}") from error
    if config.get("tie_word_embeddings") and EMBEDDING in found:
        found[HEAD] = found[EMBEDDING]
    for name, size in shape.sizes():
        if name not in found or tuple(found[name].shape) != size:
            has = tuple(found[name].shape) if name in found else "nothing"
            raise WeightsRefused(folder, f"{name} should have the size {size} and has {has}")
    return Weights(shape, {name: found[name].to(torch.float32).contiguous() for name, _ in shape.sizes()})


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The sizes in a `config.json`. ValueError names an option that would need other code than ours."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    known = {
        "model_type": (config.get("model_type"), "llama"),
        "vocab_size": (config.get("vocab_size"), VOCABULARY_SIZE),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "attention_bias": (config.get("attention_bias", False), False),
        "mlp_bias": (config.get("mlp_bias", False), False),
        "rope_type": (rope.get("rope_type", "default"), "default"),
    }
    for name, (value, wanted) in known.items():
        if value != wanted:
            raise ValueError(f"{name} is {value!r}; only {wanted!r} is known")
    heads = int(config["num_attention_heads"])
    return Shape(
        hidden=int(config["hidden_size"]),
        inner=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
        context=int(config["max_position_embeddings"]),
        rope_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
    )

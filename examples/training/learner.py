"""The learner: the worker's Llama with gradients, and one policy-gradient step over groups of rollouts.

The loss is that of GRPO, turn by turn: the advantage of a token is the score of its turn against the same turn of the
group's other rollouts, and the ratio of its probability to the one that the worker recorded is clipped. Everything runs
on one thread and in a fixed order: the same samples give the same bits.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save, save_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from participants.worker import weights
from participants.worker.weights import EMBEDDING, FINAL_NORM, HEAD, TENSORS, Shape, Weights

from .samples import Sample

SHAPE = Shape(hidden=32, inner=64, layers=1, heads=4, kv_heads=2, head_size=8, context=256)
RATE, LOWEST = 0.015, 0.1
"""Of learning, and the share of it that is left at the last step."""
EPOCHS = 2
"""Passes over the samples of a step."""
CLIP = 0.2
TOLERANCE = 1e-3
"""Between a recorded log probability and that of the learner: the same weights, and the sums in another order."""


class Learner:
    """Weights and the state of their optimizer."""

    def __init__(self, seed: int, steps: int) -> None:
        """`steps`: after how many the rate has fallen to its end."""
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        self._steps = steps
        self._tensors = {name: tensor.clone() for name, tensor in weights.make(seed, SHAPE).tensors.items()}
        self._optimizer = torch.optim.Adam(self._parameters(), lr=RATE, betas=(0.9, 0.99))

    def _parameters(self) -> list[torch.Tensor]:
        return [tensor.requires_grad_() for tensor in self._tensors.values()]

    # What a checkpoint keeps

    def save(self, folder: Path) -> list[Path]:
        """Write what the worker loads, and the optimizer beside it; both are whole once they have their names."""
        new = folder / "new"
        weights.save(Weights(SHAPE, {name: tensor.detach() for name, tensor in self._tensors.items()}), new)
        kept = {f"{n}.{key}": each for n, state in self._state().items() for key, each in state.items()}
        save_file(kept, new / "optimizer.safetensors")
        for path in new.iterdir():
            os.replace(path, folder / path.name)
        new.rmdir()
        return [folder / TENSORS, folder / "optimizer.safetensors"]

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        for name, tensor in load_file(folder / TENSORS).items():
            self._tensors[name].data.copy_(tensor)
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in load_file(folder / "optimizer.safetensors").items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = tensor
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": state})

    def digest(self) -> str:
        """Of every bit of the weights."""
        return hashlib.sha256(save({name: tensor.detach() for name, tensor in self._tensors.items()})).hexdigest()

    def _state(self) -> dict[int, dict[str, torch.Tensor]]:
        state: dict[int, dict[str, torch.Tensor]] = self._optimizer.state_dict()["state"]
        return state

    # What it does

    def update(self, step: int, groups: Sequence[Sequence[Sample]]) -> None:
        """Learn from groups, in their order. Raises ValueError where samples are not of these weights."""
        batch = _Batch(groups)
        for group in self._optimizer.param_groups:
            group["lr"] = RATE * (1 - (1 - LOWEST) * step / self._steps)
        for epoch in range(EPOCHS):
            sure = torch.log_softmax(logits(self._tensors, batch.ids), -1)
            # What stands at a place was chosen by the logits of the place before.
            said = sure[batch.row, batch.at - 1, batch.ids[batch.row, batch.at]]
            if epoch == 0 and (apart := float((said - batch.recorded).detach().abs().max())) > TOLERANCE:
                raise ValueError(f"log probabilities in the rows are {apart} away from those of weights {step}")
            ratio = (said - batch.recorded).exp()
            kept = torch.minimum(ratio * batch.advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * batch.advantage)
            self._optimizer.zero_grad()
            (-kept.mean()).backward()
            torch.nn.utils.clip_grad_norm_(self._tensors.values(), 1.0)
            self._optimizer.step()


class _Batch:
    """Samples as tensors: one row a rollout, and one entry of the rest for each token that was generated."""

    def __init__(self, groups: Sequence[Sequence[Sample]]) -> None:
        samples = [sample for group in groups for sample in group]
        self.ids = torch.zeros(len(samples), max(len(sample["ids"]) for sample in samples), dtype=torch.long)
        for n, sample in enumerate(samples):
            self.ids[n, : len(sample["ids"])] = torch.tensor(sample["ids"])
        self.row = torch.tensor([n for n, sample in enumerate(samples) for _ in sample["at"]])
        self.at = torch.tensor([place for sample in samples for place in sample["at"]])
        self.recorded = torch.tensor([each for sample in samples for each in sample["logprobs"]])
        scores = [torch.tensor([sample["scores"] for sample in group]) for group in groups]
        against = [(each - each.mean(0)) / (each.std(0) + 1e-4) for each in scores]
        self.advantage = torch.cat([each.flatten() for each in against])


def logits(tensors: Mapping[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """The model of `participants.worker.llama` over whole sequences: [rows, places, vocabulary]."""
    steps = torch.arange(0, SHAPE.head_size, 2, dtype=torch.float32) / SHAPE.head_size
    angles = torch.outer(torch.arange(ids.shape[1], dtype=torch.float32), 1.0 / SHAPE.rope_base**steps)
    rows = tensors[EMBEDDING][ids]
    for n in range(SHAPE.layers):
        layer = {name.removeprefix(f"model.layers.{n}."): tensor for name, tensor in tensors.items()}
        rows = rows + _attention(layer, _norm(layer["input_layernorm.weight"], rows), angles)
        inner = _norm(layer["post_attention_layernorm.weight"], rows)
        gate = silu(linear(inner, layer["mlp.gate_proj.weight"]))
        rows = rows + linear(gate * linear(inner, layer["mlp.up_proj.weight"]), layer["mlp.down_proj.weight"])
    return linear(_norm(tensors[FINAL_NORM], rows), tensors[HEAD])


def _attention(layer: Mapping[str, torch.Tensor], rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    heads = [
        linear(rows, layer[f"self_attn.{part}_proj.weight"]).unflatten(-1, (-1, SHAPE.head_size)).transpose(1, 2)
        for part in "qkv"
    ]
    queries, keys = (_rotated(each, angles) for each in heads[:2])
    shared = SHAPE.heads // SHAPE.kv_heads
    keys, values = keys.repeat_interleave(shared, 1), heads[2].repeat_interleave(shared, 1)
    seen: Any = scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return linear(seen.transpose(1, 2).flatten(2), layer["self_attn.o_proj.weight"])


def _rotated(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = rows.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _norm(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return weight * (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + SHAPE.epsilon))

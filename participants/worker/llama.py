"""A Llama that computes a token's logits from its sequence alone: bit for bit the same in any company.

A matrix product gives a row other bits when the number of rows changes, and a sum does when its length does. So
everything is computed in fixed sizes:

1. A tile always has TILE rows, each one position of some sequence; rows that nobody needs are zeros. Norms,
   projections and the feed-forward part see nothing but the tile.
2. Attention is computed for the rows of one sequence in one block of BLOCK positions at a time, again as TILE rows,
   over keys up to the end of that block; those after a row's own position count for nothing, exactly.

Then it does not matter whether a position was computed with the prompt or as the last token of it, alone or beside
others, and a prompt with a prefix of the output continues exactly what was cut. This holds if the library computes each
row of a product without regard to the others; `rows_are_independent` looks, and where they are not, a tile has one row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.nn.functional import linear, silu

from .weights import EMBEDDING, FINAL_NORM, HEAD, Weights

TILE = 16
BLOCK = 64


class Cache:
    """Keys and values of one sequence so far."""

    def __init__(self) -> None:
        self.length = 0
        """Positions that are computed."""
        self.keys: list[torch.Tensor] = []
        """For each layer [kv heads, room, head size]; zeros where nothing is computed."""
        self.values: list[torch.Tensor] = []

    def make_room(self, positions: int, weights: Weights) -> None:
        """Have room for that many, in whole blocks."""
        room = self.keys[0].shape[1] if self.keys else 0
        if positions <= room:
            return
        shape = weights.shape
        wanted = -(-max(positions, 2 * room) // BLOCK) * BLOCK
        grown = [torch.zeros(shape.kv_heads, wanted, shape.head_size) for _ in range(2 * shape.layers)]
        for new, old in zip(grown, [*self.keys, *self.values], strict=False):
            new[:, :room] = old
        self.keys, self.values = grown[: shape.layers], grown[shape.layers :]

    def copy(self, length: int) -> "Cache":
        """Another one that knows the first `length` positions."""
        made = Cache()
        made.length = length
        room = -(-length // BLOCK) * BLOCK
        made.keys, made.values = ([each[:, :room].clone() for each in side] for side in (self.keys, self.values))
        return made


@dataclass(frozen=True, slots=True)
class Run:
    """Positions in a row of one sequence, to be computed in one tile."""

    cache: Cache
    """They begin at its `length`."""
    ids: str

    def end(self) -> int:
        """The position after its last one."""
        return self.cache.length + len(self.ids)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of a tile that look back together: those of one sequence in one block."""

    cache: Cache
    rows: slice
    """In the tile."""
    positions: slice
    """In the sequence."""
    upto: int
    """They look at the positions before this one: the end of their block."""
    mask: torch.Tensor
    """[1, heads of a group x tile, upto]: 0 for what a row may see, else minus infinity."""


class Llama:
    """The model. Not safe to call from two threads at once."""

    def __init__(self, weights: Weights, tile: int | None = None) -> None:
        """`tile`: TILE, or 1 where each row has to be computed alone; found out if it is not said."""
        shape = weights.shape
        self.weights, self.shape = weights, shape
        steps = torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), 1.0 / shape.rope_base**steps)
        self._cos, self._sin = angles.cos(), angles.sin()
        self._group = shape.heads // shape.kv_heads
        self.tile = tile or (TILE if rows_are_independent(weights) else 1)

    def compute(self, runs: Sequence[Run]) -> torch.Tensor:
        """Compute at most `tile` positions, extend the caches, give the logits of each run's last position.

        The result is [runs, vocabulary]. Caches are extended only when all is computed.
        """
        torch.set_num_threads(1)  # of this thread; more of them would divide the sums in another way
        with torch.inference_mode():
            return self._compute(runs)

    def _compute(self, runs: Sequence[Run]) -> torch.Tensor:
        shape, tensors = self.shape, self.weights.tensors
        positions = [position for run in runs for position in range(run.cache.length, run.end())]
        spare = [0] * (self.tile - len(positions))
        ids = torch.tensor([ord(each) for run in runs for each in run.ids] + spare)
        where = torch.tensor(positions + spare)
        turns = self._cos[where].unsqueeze(1), self._sin[where].unsqueeze(1)
        for run in runs:
            run.cache.make_room(run.end(), self.weights)
        spans = list(self._spans(runs))
        rows = tensors[EMBEDDING][ids]
        for layer in range(shape.layers):
            rows = rows + self._attention(layer, rows, spans, turns)
            rows = rows + self._feed_forward(layer, rows)
        logits = linear(self._norm(FINAL_NORM, rows), tensors[HEAD])
        for run in runs:
            run.cache.length = run.end()
        return logits[[each - 1 for each in accumulate(len(run.ids) for run in runs)]]

    def _spans(self, runs: Sequence[Run]) -> Iterator[Span]:
        row = 0
        for run in runs:
            begin = run.cache.length
            while begin < run.end():
                upto = (begin // BLOCK + 1) * BLOCK
                end = min(upto, run.end())
                own = begin + torch.arange(self.tile).repeat(self._group).unsqueeze(1)
                mask = torch.zeros(1, len(own), upto).masked_fill_(torch.arange(upto) > own, -torch.inf)
                yield Span(run.cache, slice(row, row + end - begin), slice(begin, end), upto, mask)
                row, begin = row + end - begin, end

    def _norm(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.shape.epsilon)
        return self.weights.tensors[name] * (rows * scale)

    def _feed_forward(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        tensors, name = self.weights.tensors, f"model.layers.{layer}."
        rows = self._norm(name + "post_attention_layernorm.weight", rows)
        gate = silu(linear(rows, tensors[name + "mlp.gate_proj.weight"]))
        return linear(gate * linear(rows, tensors[name + "mlp.up_proj.weight"]), tensors[name + "mlp.down_proj.weight"])

    def _attention(
        self, layer: int, rows: torch.Tensor, spans: Sequence[Span], turns: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        tensors, name = self.weights.tensors, f"model.layers.{layer}."
        rows = self._norm(name + "input_layernorm.weight", rows)
        queries, keys, values = (
            linear(rows, tensors[f"{name}self_attn.{part}_proj.weight"]).view(self.tile, -1, self.shape.head_size)
            for part in "qkv"
        )
        queries, keys = _rotated(queries, *turns), _rotated(keys, *turns)
        seen = torch.zeros_like(queries)
        for span in spans:
            span.cache.keys[layer][:, span.positions] = keys[span.rows].transpose(0, 1)
            span.cache.values[layer][:, span.positions] = values[span.rows].transpose(0, 1)
            seen[span.rows] = self._look_back(span, layer, queries[span.rows])
        return linear(seen.view(self.tile, -1), tensors[name + "self_attn.o_proj.weight"])

    def _look_back(self, span: Span, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """What the rows of a span see: [rows, heads, head size]."""
        shape = self.shape
        padded = torch.zeros(self.tile, shape.kv_heads, self._group, shape.head_size)
        padded[: len(queries)] = queries.view(-1, shape.kv_heads, self._group, shape.head_size)
        asked = padded.permute(1, 2, 0, 3).reshape(shape.kv_heads, self._group * self.tile, shape.head_size)
        keys, values = span.cache.keys[layer][:, : span.upto], span.cache.values[layer][:, : span.upto]
        scores = torch.baddbmm(span.mask, asked, keys.transpose(1, 2), alpha=shape.head_size**-0.5)
        seen = torch.bmm(torch.softmax(scores, -1), values)
        seen = seen.view(shape.kv_heads, self._group, self.tile, shape.head_size).permute(2, 0, 1, 3)
        return seen.flatten(1, 2)[: len(queries)]


def _rotated(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions, the first half of a head against the second."""
    first, second = rows.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rows_are_independent(weights: Weights, product: Product = linear) -> bool:
    """Whether a row of a product of TILE rows has the same bits wherever it stands and whatever is beside it."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for tensor in weights.tensors.values():
            if tensor.dim() < 2:
                continue
            rows = torch.randn(TILE, tensor.shape[1], generator=generator)
            together = product(rows, tensor)
            alone = torch.zeros_like(rows)
            alone[TILE // 2] = rows[0]
            if not torch.equal(product(rows.flip(0), tensor).flip(0), together):
                return False
            if not torch.equal(product(alone, tensor)[TILE // 2], together[0]):
                return False
    return True

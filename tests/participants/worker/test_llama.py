"""The model computes what transformers computes, and a token's bits depend on nothing but its sequence."""

from itertools import pairwise
from pathlib import Path

import pytest

from participants.inference.tokens import Ids, encode, to_numbers

pytest.importorskip("torch", reason="the extra worker is not installed")

import torch

from participants.worker.llama import BLOCK, TILE, Cache, Llama, Run, rows_are_independent
from participants.worker.weights import Shape, make, save

pytestmark = pytest.mark.real

IDS = encode("once upon a time there was a small house and the people said they would make the water come " * 5)


@pytest.fixture(scope="module")
def llama() -> Llama:
    """The model that ships."""
    return Llama(make(0))


def computed(llama: Llama, ids: str, sizes: list[int]) -> tuple[Cache, list[torch.Tensor]]:
    """A cache that knows these ids, fed in portions of these sizes, and the logits after each portion."""
    cache, at, logits = Cache(), 0, []
    for size in sizes:
        logits.append(llama.compute([Run(cache, ids[at : at + size])])[0])
        at += size
    assert cache.length == at == len(ids)
    return cache, logits


def portions(count: int, tile: int) -> list[int]:
    """A prompt as tiles."""
    return [tile] * (count // tile) + [count % tile] * bool(count % tile)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """transformers' own Llama, loaded from the folder that was saved, gives the same logits at every position."""
    transformers = pytest.importorskip("transformers")
    weights = make(3)
    save(weights, tmp_path)
    reference = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        expected = reference(torch.tensor([to_numbers(IDS)])).logits[0]
    _, logits = computed(Llama(weights), IDS, [1] * len(IDS))
    assert float((torch.stack(logits) - expected).abs().max()) < 1e-3
    assert torch.equal(torch.stack(logits).argmax(-1), expected.argmax(-1))


def test_a_token_has_the_same_bits_with_the_prompt_and_as_the_newest(llama: Llama) -> None:
    """Wherever a sequence is cut, the part before, computed in tiles, leaves what computing it one by one leaves."""
    assert len(IDS) > BLOCK + TILE
    whole, uncut = computed(llama, IDS, [1] * len(IDS))
    for cut in range(1, len(IDS)):
        cache, logits = computed(llama, IDS[:cut], portions(cut, TILE))
        assert torch.equal(logits[-1], uncut[cut - 1])
        for layer in range(llama.shape.layers):
            assert torch.equal(cache.keys[layer][:, :cut], whole.keys[layer][:, :cut])
            assert torch.equal(cache.values[layer][:, :cut], whole.values[layer][:, :cut])


def test_company_in_a_tile_changes_no_bit(llama: Llama) -> None:
    """Eight sequences of different lengths in one tile, in any order, each get the logits that they get alone."""
    alone = [computed(llama, IDS[: 10 + 9 * n], portions(10 + 9 * n, TILE))[1][-1] for n in range(8)]
    for order in (range(8), range(7, -1, -1), (3, 1, 0, 2, 7, 5, 4, 6)):
        caches = [computed(llama, IDS[: 9 + 9 * n], portions(9 + 9 * n, TILE))[0] for n in order]
        together = llama.compute([Run(cache, IDS[cache.length]) for cache in caches])
        assert all(torch.equal(logits, alone[n]) for n, logits in zip(order, together, strict=True))


def test_one_row_at_a_time_is_exact_too() -> None:
    """Where rows are not independent a tile has one row; cut and uncut are then the same computation."""
    single = Llama(make(0), tile=1)
    _, logits = computed(single, IDS[:20], [1] * 20)
    _, shared = computed(Llama(make(0), tile=TILE), IDS[:20], [1] * 20)
    assert float((logits[-1] - shared[-1]).abs().max()) < 1e-3


def test_dependent_rows_are_found() -> None:
    """A product whose rows see each other, or whose rows depend on where they stand, is not taken for exact."""

    def leaking(rows: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows + rows.mean() * 1e-6, tensor)

    def uneven(rows: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.nn.functional.linear(part, tensor) for part in (rows[:1], rows[1:])])

    weights = make(0, Shape(layers=1))
    assert rows_are_independent(weights)
    assert not rows_are_independent(weights, leaking)
    assert not rows_are_independent(weights, uneven)


def test_a_copy_of_a_cache_goes_on_like_the_cache(llama: Llama) -> None:
    """A beginning that is taken from another sequence gives the bits of one that was computed."""
    cache, _ = computed(llama, IDS, portions(len(IDS), TILE))
    for length in (16, BLOCK - 1, BLOCK, BLOCK + 1, len(IDS) - 1):
        _, expected = computed(llama, Ids(IDS[: length + 1]), [*portions(length, TILE), 1])
        assert torch.equal(llama.compute([Run(cache.copy(length), IDS[length])])[0], expected[-1])


def test_seeds_give_different_models() -> None:
    """The same seed gives the same weights, another one others."""
    tensors = [make(seed, Shape(layers=1)).tensors for seed in (5, 5, 6)]
    same, other = (all(torch.equal(one[name], two[name]) for name in one) for one, two in pairwise(tensors))
    assert same
    assert not other

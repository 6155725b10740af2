"""A folder of weights is loaded as it was saved, or refused with what is wrong in it."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra worker is not installed")

import torch
from safetensors.torch import load_file, save_file

from participants.worker.refusals import WeightsRefused
from participants.worker.weights import CONFIG, HEAD, TENSORS, Shape, load, make, save

pytestmark = pytest.mark.real
SMALL = Shape(layers=1, context=256)


def changed(folder: Path, **options: Any) -> Path:
    """Saved weights with other options in their configuration."""
    save(make(0, SMALL), folder)
    config = json.loads((folder / CONFIG).read_text()) | options
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """Sizes and every tensor come back."""
    weights = make(1, SMALL)
    save(weights, tmp_path / "new")
    loaded = load(tmp_path / "new")
    assert loaded.shape == SMALL
    assert all(torch.equal(tensor, loaded.tensors[name]) for name, tensor in weights.tensors.items())


def test_what_transformers_saved_is_loaded(tmp_path: Path) -> None:
    """A Llama of transformers, with tied embeddings and another base of its rotary positions, is read as it is."""
    transformers = pytest.importorskip("transformers")
    sizes = SMALL.config() | {"tie_word_embeddings": True, "rope_theta": 5000.0}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert loaded.shape.rope_base == 5000.0
    assert torch.equal(loaded.tensors[HEAD], model.model.embed_tokens.weight)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model_type": "qwen2"}, "model_type is 'qwen2'"),
        ({"vocab_size": 32000}, "vocab_size is 32000"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"hidden_size": 128}, "should have the size"),
        ({"num_hidden_layers": 2}, "model.layers.1.input_layernorm.weight should have the size (256,) and has nothing"),
        ({"num_attention_heads": None}, CONFIG),
    ],
)
def test_weights_of_another_kind_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    """An option that needs other code, and tensors that do not fit, are named."""
    with pytest.raises(WeightsRefused) as refused:
        load(changed(tmp_path, **options))
    assert says in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    """Missing, torn and incomplete files are refused, not raised as they come."""
    with pytest.raises(WeightsRefused, match="cannot use"):
        load(tmp_path / "nowhere")
    changed(tmp_path)
    whole = (tmp_path / TENSORS).read_bytes()
    (tmp_path / TENSORS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsRefused, match="cannot use"):
        load(tmp_path)
    (tmp_path / TENSORS).write_bytes(whole)
    tensors = load_file(tmp_path / TENSORS)
    del tensors[HEAD]
    save_file(tensors, tmp_path / TENSORS)
    with pytest.raises(WeightsRefused, match="has nothing"):
        load(tmp_path)
    (tmp_path / CONFIG).write_text("{")
    with pytest.raises(WeightsRefused, match="cannot use"):
        load(tmp_path)

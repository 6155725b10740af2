"""A trainer loads other weights into a worker that runs: named from the next token on, or refused without effect."""

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from anyio.to_thread import run_sync

from participants.inference import Backend, Settings, completions
from participants.inference.weights_route import ROUTE

pytest.importorskip("torch", reason="the extra worker is not installed")

from participants.worker.engine import LlamaEngine
from participants.worker.weights import CONFIG, TENSORS, Shape, make, save

pytestmark = [pytest.mark.real, pytest.mark.anyio]
SMALL = Shape(hidden=32, inner=32, layers=1, heads=2, kv_heads=1, head_size=16, context=256)
ASKED = {"prompt": "once upon a time", "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def client(root: Path, *, real: bool = True) -> httpx.AsyncClient:
    """A worker with the weights of seed 0, called in this process."""
    engine = LlamaEngine(make(0, SMALL)) if real else None
    backend = Backend(Settings(model="m", weights_root=root), engine)
    return httpx.AsyncClient(transport=httpx.ASGITransport(backend.app), base_url="http://worker")


async def said(worker: httpx.AsyncClient) -> tuple[str, list[int]]:
    """The version and the ids of a short completion."""
    reply = (await worker.post("/v1/completions", json=ASKED)).raise_for_status().json()
    return reply["weight_version"], reply["choices"][0]["token_ids"]


async def test_weights_of_a_folder_are_those_of_the_next_token(tmp_path: Path) -> None:
    """What is said then is what a worker says that was started with them, and the reply names them."""
    for seed in (0, 1):
        await run_sync(save, make(seed, SMALL), tmp_path / f"{seed}")
    async with client(tmp_path) as worker:
        before = await said(worker)
        reply = await worker.post(ROUTE, json={"model_path": "1", "weight_version": "one"})
        assert (reply.status_code, reply.json()["weight_version"]) == (200, "one")
        version, ids = await said(worker)
        assert (before[0], version) == ("0", "one")
        assert ids != before[1]
        back = {"model_path": str(tmp_path / "0"), "weight_version": "zero"}
        assert (await worker.post(ROUTE, json=back)).status_code == 200
        assert await said(worker) == ("zero", before[1])


async def test_a_call_in_progress_goes_on_with_them(tmp_path: Path) -> None:
    """Its next token is made with them, on what it has computed, and each token names its version."""
    await run_sync(save, make(1, SMALL), tmp_path / "1")
    engine = LlamaEngine(make(0, SMALL))
    job = completions.parse(orjson.dumps(ASKED), "m")
    generation, pieces = engine.begin(job), []
    while not generation.finish:
        pieces += await generation.run(1)
        if generation.generated == 2:
            await engine.reload("one", tmp_path / "1")
    assert [piece.weights for piece in pieces] == ["0"] * 2 + ["one"] * 4


def half_written(folder: Path) -> None:
    """A folder whose tensors end too early."""
    save(make(1, SMALL), folder)
    tensors = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(tensors[: len(tensors) // 2])


def larger(folder: Path) -> None:
    """A folder with one more layer."""
    save(make(1, Shape(hidden=32, inner=32, layers=2, heads=2, kv_heads=1, head_size=16, context=256)), folder)


def without_config(folder: Path) -> None:
    """A folder that does not say what it is."""
    save(make(1, SMALL), folder)
    (folder / CONFIG).unlink()


@pytest.mark.parametrize(
    ("written", "says"),
    [(half_written, "cannot use"), (larger, "layers=2"), (without_config, CONFIG), (None, "cannot use")],
)
async def test_a_folder_that_cannot_be_used_changes_nothing(tmp_path: Path, written: Any, says: str) -> None:
    """It is refused with its code and what is wrong, and the worker goes on as before."""
    if written is not None:
        await run_sync(written, tmp_path / "bad")
    async with client(tmp_path) as worker:
        before = await said(worker)
        reply = await worker.post(ROUTE, json={"model_path": "bad", "weight_version": "1"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "weights_refused")
        assert says in reply.json()["error"]["message"]
        assert await said(worker) == before


def two_folders(folder: Path) -> None:
    """Weights below the root, weights beside it, and a link to those."""
    for name in ("root/good", "other"):
        save(make(1, SMALL), folder / name)
    (folder / "root" / "link").symlink_to(folder / "other")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model_path": "../other", "weight_version": "1"}, "model_path"),
        ({"model_path": "/", "weight_version": "1"}, "model_path"),
        ({"model_path": "link", "weight_version": "1"}, "model_path"),
        ({"model_path": "a\0b", "weight_version": "1"}, "model_path"),
        ({"model_path": "good", "weight_version": ""}, "weight_version"),
        ({"model_path": "good"}, "weight_version"),
        ({"model_path": "good", "weight_version": "1", "abort_all_requests": True}, "abort_all_requests"),
    ],
)
async def test_a_folder_elsewhere_and_an_unknown_field_are_refused(
    tmp_path: Path, body: dict[str, Any], param: str
) -> None:
    """Nothing is loaded from outside the root, by whatever way, and nothing is ignored that was asked for."""
    root = tmp_path / "root"
    await run_sync(two_folders, tmp_path)
    async with client(root) as worker:
        before = await said(worker)
        reply = await worker.post(ROUTE, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert await said(worker) == before


async def test_words_of_a_hash_have_no_weights(tmp_path: Path) -> None:
    """The deterministic backend refuses, and a worker without the option has no such route."""
    async with client(tmp_path, real=False) as worker:
        reply = await worker.post(ROUTE, json={"model_path": "x", "weight_version": "1"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "weights_refused")
    transport = httpx.ASGITransport(Backend(Settings()).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as plain:
        assert (await plain.post(ROUTE, json={})).status_code == 404

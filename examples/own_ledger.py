"""A capture ledger of one's own: two model calls of a rollout, read over HTTP as a trainer reads them, and checked.

python examples/own_ledger.py [FOLDER]
"""

import sys
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import httpx
import orjson
from starlette.applications import Starlette
from starlette.routing import Mount

from midflight import Life, ModelServer, OpenAIEndpoint, Request
from participants.backends.lazy import LazyCapabilities
from participants.inference import Backend, Settings, serving
from participants.ledger import LEDGER_PREFIX, Ledger, check, ledger_app

MODEL = "midflight-deterministic"
TOKEN = "the control token"
LIFE = Life("task-1", epoch=1, attempt=0, n=0)


async def generate(endpoint: OpenAIEndpoint, ledger: Ledger) -> None:
    """Two calls of one life; the row of each is durable before its reply is here."""
    model = ModelServer(endpoint, cuts=LazyCapabilities(endpoint, MODEL), ledger=ledger)
    messages = [{"role": "user", "content": "count to two"}]
    for _ in range(2):
        body = {"model": MODEL, "messages": messages, "max_tokens": 8}
        reply = await model.handle(Request(route="/v1/chat/completions", body=body, life=LIFE))
        messages = [*messages, reply.body["choices"][0]["message"], {"role": "user", "content": "go on"}]


async def read(client: httpx.AsyncClient, key: str) -> None:
    """What a trainer does: fetch manifest and rows by the capture key, and work every digest out again."""
    manifest: dict[str, Any] = (await client.get(f"{LEDGER_PREFIX}/{key}/manifest")).json()
    lines = (await client.get(f"{LEDGER_PREFIX}/{key}/rows")).content.splitlines()
    rows = [orjson.loads(line) for line in lines]
    lives = [*manifest["origins"], manifest["life"]]
    wrong = check(rows, lives=lives, count=manifest["rows"], last=manifest["last"])
    print(f"{len(rows)} rows of {key}, wrong: {wrong}")
    for row in rows:
        print(
            f"  {row['index']}: {row['prompt_count']} tokens in, {row['generated_count']} out, {row['finish_reason']}"
        )


async def main(folder: str) -> None:
    """Make the ledger, and serve it as one would beside the control plane."""
    ledger = Ledger(f"{folder}/ledger")
    async with serving(Backend(Settings())) as url, OpenAIEndpoint(f"{url}/v1") as endpoint:
        await generate(endpoint, ledger)
    app = Starlette(routes=[Mount(LEDGER_PREFIX, ledger_app(ledger, TOKEN))])
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://trainer", headers=headers
    ) as client:
        await read(client, LIFE.rollout_id)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else scratch)

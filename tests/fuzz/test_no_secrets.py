"""A run that used keys, over servers and an S3 store: none of them is in anything that it left or said."""

import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
import zstandard

from store.secrets import scan
from tests.orchestrator.collect.harness import Run, counter_row
from tests.orchestrator.collect.test_served import all_held
from tests.orchestrator.collect.test_stopping import hold_second_calls
from tests.orchestrator.collect.test_telemetry import server_urls, told_at
from tests.support.backend import start_backend
from tests.support.seaweed import S3Server
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

API_KEY = "sk-proj-" + "0aB1cD2eF3gH4iJ5kL6mN7oP"
TOKEN = "hf_" + "9zY8xW7vU6tS5rQ4pO3nM2lK1jI0hGfEdCbA"
"""Both look like keys, so that the scanner knows them, wherever they are."""


def left_in(folder: Path) -> Mapping[str, bytes]:
    """Every file below a folder; the sources of the run are none of its own."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def stored(server: S3Server) -> Mapping[str, bytes]:
    """Every object of the run."""
    client = server.client()
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=server.bucket, Prefix=server.prefix)
        keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return {key: client.get_object(Bucket=server.bucket, Key=key)["Body"].read() for key in keys}
    finally:
        client.close()


def unpacked(data: bytes) -> bytes:
    """Frames of zstd one after another, or the bytes as they are."""
    if not data.startswith(b"\x28\xb5\x2f\xfd"):
        return data
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return bytes(reader.read())


def found_in(contents: Mapping[str, bytes], keys: Mapping[str, str]) -> list[str]:
    """Where one of these keys is, and where something is that looks like one."""
    found = []
    for name, data in contents.items():
        whole = unpacked(data)
        found += [f"{name}: {which}" for which, key in keys.items() if key.encode() in whole]
        found += [f"{name}: {hit.kind} at {hit.offset}" for hit in scan(whole)]
    return found


NONCE = re.compile(rb'"token":"[0-9a-f]{32}"')
"""Of a chain entry: drawn for it alone, so that its writer knows it again. It opens nothing."""


def without_nonces(contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The same, but for what every chain entry has that looks like a token."""
    return {name: NONCE.sub(b"", data) if "/chain/" in name else data for name, data in contents.items()}


KEYS = {"API_KEY": API_KEY, "FLEET_TOKEN": TOKEN}


@pytest.fixture
def run(tmp_path: Path, seaweed: S3Server) -> Iterator[Run]:
    """Four rows over servers, with a ledger, pages of metrics, and a store in a bucket."""
    access = {"AWS_ACCESS_KEY_ID": seaweed.access_key, "AWS_SECRET_ACCESS_KEY": seaweed.secret_key}
    where = {"AWS_ENDPOINT_URL": seaweed.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    with start_backend(tmp_path) as backend:
        run = Run(
            tmp_path,
            backend,
            [counter_row(number) for number in range(4)],
            checkpoint_url=seaweed.url,
            checkpoint={"interval_s": 0},
            model={"api_key_env": "API_KEY"},
            capture={"folder": str(tmp_path / "ledger")},
            fleet={"token_env": "FLEET_TOKEN"},
            environment={**KEYS, **access, **where},
        )
        yield run
        run.end_servers()


def said(run: Run, page: str) -> Mapping[str, bytes]:
    """What everybody who listens says to anybody, and to whoever has the token."""
    urls = {**server_urls(run), "collector": page.removesuffix("/metrics")}
    paths = ("/metrics", "/health", "/midflight/v1/workers", "/midflight/v1/metrics", "/checkpoint/v1/status")
    token = {"authorization": f"Bearer {TOKEN}"}
    found = {f"{url}{path}": httpx.get(f"{url}{path}", timeout=20).content for url in urls.values() for path in paths}
    for path in ("/checkpoint/v1/status", "/checkpoint/v1/capabilities", "/checkpoint/v1/openapi.json"):
        for role, url in server_urls(run).items():
            found[f"{role} {path}"] = httpx.get(f"{url}{path}", headers=token, timeout=20).content
    return found


def test_a_run_that_used_keys_leaves_none_of_them(run: Run, seaweed: S3Server) -> None:
    """Not in records, manifests and chain, nor in ledger, logs, rows, events, state of the fleet and telemetry."""
    page = told_at(run)
    hold_second_calls(run)
    with run.start() as start:
        all_held(run, start)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint") or not start.lives(), 90.0, start.told)
        pages = said(run, page)
        run.backend.control.release()
        start.wait(0)
    objects, files = stored(seaweed), left_in(run.folder)
    assert any(key.endswith("manifest.json") for key in objects)
    assert any("/ledger/" in name for name in files)
    assert any(name.endswith(".log") for name in files)
    keys = {**KEYS, "AWS_SECRET_ACCESS_KEY": seaweed.secret_key}
    assert found_in({**pages, **without_nonces(objects), **files}, keys) == []


def test_a_key_that_was_left_somewhere_is_found(tmp_path: Path) -> None:
    """In a log as in a part that is packed."""
    (tmp_path / "a.log").write_text(f'{{"message": "tried with {API_KEY}"}}')
    (tmp_path / "part").write_bytes(zstandard.compress(b"x ") + zstandard.compress(TOKEN.encode()))
    found = found_in(left_in(tmp_path), KEYS)
    assert [hit.rpartition("/")[2].partition(" at ")[0] for hit in found] == [
        "a.log: API_KEY", "a.log: model-api-key", "part: FLEET_TOKEN", "part: huggingface-token"
    ]  # fmt: skip

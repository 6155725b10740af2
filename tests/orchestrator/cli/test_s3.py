"""The commands on a real S3 server: options, credentials from the environment, and who is told what."""

from functools import partial
from pathlib import Path

import anyio
import pytest

from store import open_store
from tests.support.checkpoints import AGENT, publish_rounds, records
from tests.support.seaweed import S3Server

from .conftest import Run

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


@pytest.fixture
def bucket(seaweed: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A prefix with two checkpoints, and credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweed.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    anyio.run(partial(fill, seaweed))
    return seaweed


async def fill(server: S3Server) -> None:
    async with open_store(server.url, "write", storage_options=server.options()) as store:
        await publish_rounds(store, [{AGENT: records(3)}, {AGENT: records(2)}])


def test_every_command_works_on_a_bucket(bucket: S3Server, run: Run, tmp_path: Path) -> None:
    """List, show, verify, diff, prune, and a copy out of it and back in under another prefix."""
    here = (bucket.url, "--endpoint-url", bucket.endpoint)
    assert [row["checkpoint"] for row in run("list", *here, "--json").document["checkpoints"]] == ["1.1", "1.2"]
    assert run("show", *here, "--rollout", "r1").code == 0
    assert run("verify", *here, "--deep", "--json").document["findings"] == []
    assert run("diff", here[0], "1.1", "1.2", *here[1:], "--json").document["rollouts"]["only_a"] == ["r2"]
    copied = run("copy", here[0], tmp_path / "out", "--endpoint-url", bucket.endpoint, "--checkpoint", "1.1")
    assert copied.code == 0, copied.err
    back = (f"{bucket.url}-back", "--destination-endpoint-url", bucket.endpoint)
    assert run("copy", tmp_path / "out", *back, "--checkpoint", "1.1").code == 0
    assert run("verify", back[0], "--deep", "--endpoint-url", bucket.endpoint).code == 0
    assert run("prune", *here, "--keep-last", 1, "--json").document["deleted"] > 3
    assert run("list", *here, "--json").document["deletions"][0]["finished"]


def test_a_denied_store_exits_4_and_an_absent_one_3(
    bucket: S3Server, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix with nothing in it and a bucket that is not there are nothing; wrong credentials are no answer."""
    there = ("--endpoint-url", bucket.endpoint, "--retry-for", "2")
    assert run("list", f"{bucket.url}-nothing", *there).code == 3
    assert run("list", "s3://no-such-bucket-here/run", *there).code == 3
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for command in ("list", "verify", "show"):
        ran = run(command, bucket.url, *there)
        assert (ran.code, ran.out) == (4, ""), ran.err
        assert "credentials" in ran.err

"""A store that breaks the promise: `rclone serve s3` takes If-None-Match and ignores it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import free_port, program, running
from .seaweed import S3Server


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """rclone serving a local folder as a bucket."""
    folder = tmp_path_factory.mktemp("rclone")
    server = S3Server(port=free_port(), prefix="run")
    (folder / "data" / server.bucket).mkdir(parents=True)
    keys = f"{server.access_key},{server.secret_key}"
    address = f"127.0.0.1:{server.port}"
    command: list[str | Path] = [
        program("rclone"),
        "serve",
        "s3",
        "--config",
        "",
        "--addr",
        address,
        "--auth-key",
        keys,
        folder / "data",
    ]
    with running(command, folder / "log", server.accepts_objects):
        yield server

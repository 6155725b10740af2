"""A real S3 server for tests, SeaweedFS, one per session, and a fresh prefix in it per test."""

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from .processes import free_port, program, running
from .waiting import until

ACCESS_KEY, SECRET_KEY = "ciaccess", "cisecret12"
BUCKET = "midflight-tests"
_IDENTITY = {
    "name": "ci",
    "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
    "actions": ["Admin", "Read", "List", "Tagging", "Write"],
}
START_S = 90.0
END_S = 10.0
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """Where a server listens, and a prefix in its bucket that nobody else uses."""

    port: int
    host: str = "127.0.0.1"
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    bucket: str = BUCKET
    prefix: str = ""

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The store URL of the prefix."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def options(self, *, port: int | None = None) -> dict[str, Any]:
        """storage_options for this server, or for a proxy before it."""
        endpoint = f"http://{self.host}:{port or self.port}"
        region = {"region_name": "us-east-1"}
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "endpoint_url": endpoint,
            "client_kwargs": region,
        }

    def client(self) -> Any:
        """A plain synchronous client, to arrange and to check from outside."""
        import botocore.session  # slow to import, and every test loads this file
        from botocore.config import Config

        session = botocore.session.Session()
        session.set_credentials(self.access_key, self.secret_key)
        config = Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1})
        return session.create_client("s3", region_name="us-east-1", endpoint_url=self.endpoint, config=config)

    def accepts_objects(self) -> bool:
        """Whether the bucket exists or can be made, and an object can be written."""
        from botocore.exceptions import BotoCoreError, ClientError

        client = self.client()
        try:
            client.create_bucket(Bucket=self.bucket)
        except (client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
            pass
        except (BotoCoreError, ClientError):
            return False
        try:
            client.put_object(Bucket=self.bucket, Key="ready", Body=b"")
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server of this test session."""
    folder = tmp_path_factory.mktemp("seaweed")
    server, command = prepared(folder)
    with running(command, folder / "log", server.accepts_objects):
        yield server


@pytest.fixture
def seaweed(seaweed_server: S3Server) -> S3Server:
    """The server, with a prefix for this test alone."""
    return replace(seaweed_server, prefix=f"t{next(_numbers)}")


class KillableSeaweed:
    """A server that is killed and started again in its place, on what it had written."""

    def __init__(self, folder: Path) -> None:
        """`folder` is there, and empty."""
        self.server, self._command = prepared(folder)
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it, and do not wait; nothing where it runs."""
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )

    def await_ready(self) -> None:
        """Return once it takes objects. Raises AssertionError."""
        until(self.server.accepts_objects, START_S, lambda: self._log.read_text(errors="replace")[-2000:])

    def kill(self) -> None:
        """SIGKILL its group; nothing where it does not run."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_S)

    def restart(self) -> None:
        """Kill it and begin to start it again, in one step: a caller that is cancelled meanwhile leaves it begun."""
        self.kill()
        self.begin()


def prepared(folder: Path, host: str = "127.0.0.1") -> tuple[S3Server, Sequence[str | Path]]:
    """A server with its data below a folder, which listens at an address of this host, and how it is started."""
    identities = folder / "s3.json"
    identities.write_text(json.dumps({"identities": [_IDENTITY]}))
    (folder / "data").mkdir()
    server = S3Server(port=free_port(), host=host)
    return server, _command(folder / "data", identities, server)


def _command(data: Path, identities: Path, server: S3Server) -> list[str | Path]:
    options = {
        "dir": data,
        "ip": server.host,
        "ip.bind": server.host,
        "master.port": free_port(),
        "volume.port": free_port(),
        "filer.port": free_port(),
        "s3.port": server.port,
        "s3.config": identities,
        "s3.port.iceberg": 0,  # these two have fixed ports, on which two servers of one host would collide
        "s3.port.lance": 0,
        "volume.max": 100,
        "master.volumeSizeLimitMB": 256,
        "volume.preStopSeconds": 1,
        "master.telemetry": "false",
        "master.electionTimeout": "2s",  # It has no other master to ask, and waits for this whenever it starts again.
    }
    flags = [f"-{name}={value}" for name, value in options.items()]
    return [program("weed"), f"-logdir={data}", "server", "-filer", "-s3", *flags]

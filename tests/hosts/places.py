"""Where what is: servers at three hosts, the controller at a fourth, and at a fifth what is never cut off from anybody.

The fifth has the S3 server and the inference backend, and is from where a test looks at a host that the controller
does not reach.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
import httpx

from participants import CONTROL_PREFIX, Status
from tests.scenarios.matrix.plot import Plot
from tests.scenarios.stage import RESOURCES
from tests.support.fleet import Server
from tests.support.namespaces import Network
from tests.support.processes import running
from tests.support.seaweed import S3Server, prepared

HOSTS = ("a", "b", "c")
CONTROLLER, SERVICES = "controller", "services"
TEN_MINUTES_S = 600
SKEWS_S = {"a": TEN_MINUTES_S, "b": -TEN_MINUTES_S, "c": 0, CONTROLLER: 0, SERVICES: 0}
"""Each two of the three hosts differ by ten minutes or more. An S3 server refuses who is off by more than fifteen."""
PLACES = {"environment.main": "a", "agent.main": "b", "model.main": "c", RESOURCES: "c"}
ASKING_S = 5.0


@dataclass(slots=True)
class HostPlot(Plot):
    """A stage whose servers are at different hosts. The test itself is at the controller's."""

    network: Network = field(kw_only=True)

    def _server(self, role: str, folder: Path, environment: Mapping[str, str]) -> Server:
        host = self.network.hosts[PLACES[role]]
        own = {**environment, **host.environment}
        return Server(role, {}, folder, own, host=host.address, forked=True, nursery=host.nursery())

    async def looked_at(self) -> dict[str, Status]:
        """Where every server stands, asked from where all are reached."""
        return await anyio.to_thread.run_sync(self._look)

    def _look(self) -> dict[str, Status]:
        headers = {"authorization": f"Bearer {self.token}"}
        with self.network.at(SERVICES), httpx.Client(headers=headers, timeout=ASKING_S) as http:
            answers = {role: http.get(f"{s.url}{CONTROL_PREFIX}/status") for role, s in self.servers.items()}
        return {role: Status.model_validate_json(answer.raise_for_status().content) for role, answer in answers.items()}


@contextmanager
def s3_server(network: Network, folder: Path) -> Iterator[S3Server]:
    """SeaweedFS at its own host."""
    with ExitStack() as stack:
        with network.at(SERVICES) as host:
            server, command = prepared(folder, host.address)
            stack.enter_context(running(command, folder / "log", server.accepts_objects))
        yield server

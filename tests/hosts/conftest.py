"""Fixtures of the tests of hosts: one network, backend and S3 server for all of a process, a plot for each test."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.backend import RunningBackend, start_backend
from tests.support.namespaces import Network, clock_library, why_no_hosts
from tests.support.seaweed import S3Server

from .places import CONTROLLER, SERVICES, SKEWS_S, HostPlot, s3_server


@pytest.fixture(scope="session")
def shared_network() -> Iterator[Network]:
    """The hosts, where they can be made; each test that uses them says why not where they cannot."""
    if reason := why_no_hosts():
        pytest.skip(reason)
    with Network(SKEWS_S) as made:
        yield made


@pytest.fixture
def network(shared_network: Network) -> Iterator[Network]:
    """The hosts, with nobody cut off or lost, and this test at the controller's."""
    with shared_network.at(CONTROLLER):
        yield shared_network
    shared_network.mend()


@pytest.fixture
def skewed_network(network: Network) -> Network:
    """The same, for a test that is about clocks alone."""
    if not clock_library():
        pytest.skip("no clock skew: libfaketime is missing, Debian's faketime; all other tests of hosts run without")
    return network


@pytest.fixture(scope="session")
def host_backend(shared_network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    """An inference backend that survives, and which every host reaches."""
    folder = tmp_path_factory.mktemp("host-backend")
    with shared_network.at(SERVICES) as host:
        started = start_backend(folder, "--host", host.address, "--token-store", str(folder / "tokens"))
    with started as backend:
        yield backend


@pytest.fixture(scope="session")
def host_s3(shared_network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The S3 server that every host reaches."""
    with s3_server(shared_network, tmp_path_factory.mktemp("host-s3")) as server:
        yield server


@pytest.fixture
def plot(
    request: pytest.FixtureRequest, network: Network, host_backend: RunningBackend, tmp_path: Path
) -> Iterator[HostPlot]:
    """A plot whose store is a folder that all hosts share, or on the S3 server where the parameter is `s3`."""
    host_backend.control.reset()
    s3 = None
    if getattr(request, "param", "folder") == "s3":
        s3 = replace(request.getfixturevalue("host_s3"), prefix=tmp_path.name)
    made = HostPlot(tmp_path, host_backend, s3=s3, network=network)
    made.set_up()
    yield made
    network.heal()
    made.end()

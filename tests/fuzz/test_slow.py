"""A client that is too slow with a head, or with what is left of a body that has its answer, is let go."""

import anyio
import pytest
from starlette.responses import PlainTextResponse

from participants.serving import bounded
from participants.serving.sockets import bind, server_of

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("begun", "answers"), [(b"", 0), (HEAD, 0), (HEAD + b"content-length: 0\r\n\r\n" + HEAD, 1),
                           (HEAD + b"content-length: 9\r\n\r\n1", 1)]
)  # fmt: skip
async def test_what_comes_too_slowly_ends(begun: bytes, answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that a head may take the connection is closed; what was asked before is answered."""
    monkeypatch.setattr(bounded, "READ_S", 0.1)
    with bind("127.0.0.1", 0) as listener:
        server = server_of(PlainTextResponse("no", 401), shutdown_s=1.0)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            found = b""
            with anyio.fail_after(20):
                async with await anyio.connect_tcp("127.0.0.1", listener.getsockname()[1]) as stream:
                    await stream.send(begun)
                    async for piece in stream:
                        found += piece
            server.should_exit = True
    assert found.count(b"HTTP/1.1 401") == answers

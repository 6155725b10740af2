"""The server's WebSocket: what comes in is handed on as the bytes that it is, and never more often than it came.

A message of text is bytes, too: whether they are UTF-8 is found where they are read as JSON. uvicorn's own would decode
it, which takes several times its size, and log a traceback for each that cannot be.
"""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame


class ChannelSocket(WebSocketsSansIOProtocol):
    """The protocol of one connection, once it is a WebSocket."""

    def handle_text(self, event: Frame) -> None:
        """The beginning of a message, or all of it."""
        self.handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        """A further piece; together they take what they have, however small each of them is."""
        begun: Any = self.frames[0]
        if not isinstance(begun, bytearray):
            begun = bytearray(begun)
        begun += event.data
        self.frames = [begun]
        if event.fin:
            self.send_receive_event_to_app()

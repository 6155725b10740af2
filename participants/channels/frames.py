"""What goes over a channel: frames of JSON, many calls at once over one connection.

    to the server    {"i": 7, "route": "/x", "body": ..., "life": "r0/1.0#3", "call": "agent.main:2.0", "headers": {}}
                     {"i": 7, "cancel": true}           the caller has given up
    to the client    {"i": 7, "status": 200, "body": ..., "headers": {}}

`i` numbers the calls of one connection; it stands first, and `route`, `cancel` or `status` after it. `life`, `call` and
`headers` are left out where there are none. An error is a reply with the error's body and its code in the header
x-midflight-error, as over HTTP. A message is one frame or many, one a line: JSON has no line breaks of its own, so
whoever sends may put together what happens to be ready.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ..data import Reply, Request
from ..data_http import MAX_BODY_BYTES
from ..errors import Code, ParticipantError

CHANNEL_PATH = "/midflight/v1/channel"
WORKERS_PATH = "/midflight/v1/workers"
MAX_FRAME_BYTES = MAX_BODY_BYTES + 1024 * 1024
"""A body of the greatest size, and what goes with it."""
_BEGIN = rb'[ \t\r]{0,9}\{[ \t\r]{0,9}"i"[ \t\r]{0,9}:[ \t\r]{0,9}[0-9]{1,18}[ \t\r]{0,9},[ \t\r]{0,9}'
_CALL = re.compile(_BEGIN + rb'"(?:route|cancel)"')
_REPLY = re.compile(_BEGIN + rb'"status"')


class MalformedFrame(Exception):
    """What came is no frame; nothing that comes after it can be trusted."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it came; whether it makes sense is still to be seen."""

    number: int
    route: str
    body: Any
    life: str | None
    call: str | None
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller of this call has given up."""

    number: int


def call_rest(request: Request) -> bytes:
    """A call's frame without its number, which each try of it has of its own. Raises `invalid_request`."""
    frame: dict[str, Any] = {"route": request.route, "body": request.body}
    if request.life is not None:
        frame["life"] = str(request.life)
    if request.call is not None:
        frame["call"] = str(request.call)
    if request.headers:
        frame["headers"] = dict(request.headers)
    rest = orjson.dumps(frame)
    if len(rest) > MAX_BODY_BYTES:
        raise ParticipantError(Code.INVALID_REQUEST, f"the body is larger than {MAX_BODY_BYTES} bytes")
    return rest


def numbered(number: int, rest: bytes) -> bytes:
    """The whole frame."""
    return b'{"i":%d,' % number + rest[1:]


def cancel_frame(number: int) -> bytes:
    """Says that the caller has given up."""
    return b'{"i":%d,"cancel":true}' % number


def reply_frame(number: int, reply: Reply) -> bytes:
    """A reply's frame. Raises TypeError where the body is not JSON, and `internal` where it is too large."""
    frame: dict[str, Any] = {"i": number, "status": reply.status, "body": reply.body}
    if reply.headers:
        frame["headers"] = {name.lower(): value for name, value in reply.headers.items()}
    made = orjson.dumps(frame)
    if len(made) > MAX_FRAME_BYTES:
        raise ParticipantError(Code.INTERNAL, f"the reply has {len(made)} bytes, and {MAX_FRAME_BYTES} is the most")
    return made


def frames_of(message: bytes) -> Iterator[bytes]:
    """The frames of a message, each as it came; nothing is looked at yet."""
    begin = 0
    while (end := message.find(b"\n", begin)) >= 0:
        yield message[begin:end]
        begin = end + 1
    yield message[begin:] if begin else message


def read_call(frame: bytes) -> Call | Cancel:
    """What a client sent. Raises MalformedFrame."""
    number, fields = _read(frame, _CALL, "call")
    if fields.get("cancel") is True:
        return Cancel(number)
    route, life, call = fields.get("route"), fields.get("life"), fields.get("call")
    headers = fields.get("headers", {})
    fine = isinstance(life, str | None) and isinstance(call, str | None) and _are_headers(headers)
    if not isinstance(route, str) or not fine:
        raise MalformedFrame(f"frame {number}, of {len(frame)} bytes, is no call: a field is of another type")
    return Call(number, route, fields.get("body"), life, call, {name.lower(): value for name, value in headers.items()})


def read_reply(frame: bytes) -> tuple[int, Reply]:
    """What a server sent. Raises MalformedFrame."""
    number, fields = _read(frame, _REPLY, "reply")
    status, headers = fields.get("status"), fields.get("headers", {})
    if type(status) is not int or not _are_headers(headers):
        raise MalformedFrame(f"frame {number}, of {len(frame)} bytes, is no reply: a field is of another type")
    return number, Reply(status, fields.get("body"), headers)


def _read(frame: bytes, head: re.Pattern[bytes], what: str) -> tuple[int, dict[str, Any]]:
    """Its number and its fields. What does not begin as it must costs nothing more, however large it is.

    Of what came nothing is said again but sizes and places: it may hold anything, also what nobody else may see.
    """
    if head.match(frame) is None:
        raise MalformedFrame(f"a frame of {len(frame)} bytes does not begin as a {what} does")
    try:
        fields = orjson.loads(frame)
    except orjson.JSONDecodeError as error:
        raise MalformedFrame(f"a frame of {len(frame)} bytes is not JSON: {error}") from error
    number = fields["i"]
    if type(number) is not int:
        raise MalformedFrame(f"a frame of {len(frame)} bytes has two numbers")
    return number, fields


def _are_headers(headers: Any) -> bool:
    return isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())

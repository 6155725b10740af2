"""The two worlds that peers work in; see `protocol`. Some peers use them from several threads and event loops."""

import asyncio
import hashlib
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import orjson

from participants.inference import DEFAULT_MODEL

from ..shape import Pools
from .protocol import ChatMessage

TOOL = "increment_counter"
LETTERS = 7.0
"""Of a word and the space before it, on average."""
CALL_HEADER = "x-midflight-call"
"""Has every call of an episode and no other one; the backend notes it."""
PATIENCE_S = 1_800.0
"""For the reply to one model call, where everything is very busy."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: the clock, and the processor time of this process so far."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> "Mark":
        """This one."""
        return cls(time.perf_counter(), time.process_time())


class Ends:
    """Who has ended, and who waits for it."""

    def __init__(self, episodes: Iterable[int], ended: Iterable[int], at_once: int) -> None:
        """`ended` of `episodes` have ended already."""
        self._ended = set(ended)
        self._todo = [episode for episode in episodes if episode not in self._ended]
        self._at_once = at_once
        self._lock = threading.Lock()
        self._waiting: dict[int, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def each(self, run: Callable[[int], Awaitable[None]]) -> None:
        """All that have not ended, `at_once` at a time."""
        self._loop = asyncio.get_running_loop()
        places = anyio.Semaphore(self._at_once)

        async def one(episode: int) -> None:
            async with places:
                await run(episode)

        async with anyio.create_task_group() as group:
            for episode in self._todo:
                group.start_soon(one, episode)

    async def ended(self, episode: int) -> None:
        """Wait for it; in the event loop that `each` runs in."""
        event = asyncio.Event()
        with self._lock:
            if episode in self._ended:
                return
            self._waiting[episode] = event
        await event.wait()

    def end(self, episode: int) -> bool:
        """False if it had ended before."""
        with self._lock:
            if episode in self._ended:
                return False
            self._ended.add(episode)
            event = self._waiting.pop(episode, None)
        if event is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(event.set)
        return True


def turns_of(messages: Sequence[ChatMessage]) -> int:
    """How many model replies there are."""
    return sum(message["role"] == "assistant" for message in messages)


class StandingWorld:
    """Replies are made up at once, the same for the same episode and turn; after so many turns all are held."""

    base_url = ""
    interval_s = 0.0

    def __init__(self, episodes: int, turns: int, record_bytes: int) -> None:
        """A turn has about `record_bytes` of text."""
        self.turns, self.at_once = turns, episodes
        self._words = Pools.make().words
        self._count = max(1, round(record_bytes / LETTERS))
        self._ends = Ends(range(episodes), (), episodes)
        self._lock = threading.Lock()
        self._left = episodes
        self.calls = 0
        """Model calls that were answered."""
        self.digest = 0
        """Of the messages of all that are held, in any order."""
        self.marks: dict[str, Mark] = {}
        """When the peer was open, and when the last episode was held."""
        self._loop = asyncio.get_running_loop()
        self._all_held = asyncio.Event()

    def begin(self) -> None:
        """Noted."""
        self.marks["begun"] = Mark.now()

    async def all_held(self) -> None:
        """Wait for it, in the event loop that the world was made in."""
        await self._all_held.wait()

    async def each(self, run: Callable[[int], Awaitable[None]]) -> None:
        """All at once."""
        await self._ends.each(run)

    async def ended(self, episode: int) -> None:
        """Never: all are held."""
        await self._ends.ended(episode)

    def start(self, episode: int) -> list[ChatMessage]:
        """A short prompt."""
        return [{"role": "user", "content": f"Task {episode}: add 1 {self.turns} times."}]

    def reply(self, episode: int, turn: int) -> ChatMessage:
        """Words, and a call of the tool."""
        text = " ".join(random.Random(episode * 1_000 + turn).choices(self._words, k=self._count))
        call = {"name": TOOL, "arguments": '{"count":1}'}
        calls = [{"id": f"call_{turn}", "type": "function", "function": call}]
        return {"role": "assistant", "content": text, "tool_calls": calls}

    async def model(self, episode: int, messages: Sequence[ChatMessage]) -> ChatMessage:
        """At once, or never."""
        turn = turns_of(messages)
        if turn < self.turns:
            with self._lock:
                self.calls += 1
            return self.reply(episode, turn)
        self._hold(messages)
        await asyncio.Event().wait()
        raise AssertionError

    def _hold(self, messages: Sequence[ChatMessage]) -> None:
        said = [[message["role"], message["content"]] for message in messages]
        digest = int.from_bytes(hashlib.sha256(orjson.dumps(said)).digest()[:8])
        with self._lock:
            self.digest ^= digest
            self._left -= 1
            if self._left == 0:
                self.marks["held"] = Mark.now()
                self._loop.call_soon_threadsafe(self._all_held.set)

    async def tool(self, episode: int, message: ChatMessage) -> ChatMessage:
        """It always succeeds."""
        return tool_message(message)

    def finish(self, episode: int, messages: Sequence[ChatMessage]) -> None:
        """Nobody comes so far."""
        raise AssertionError(episode)


def tool_message(message: ChatMessage) -> ChatMessage:
    """What the tool of a message says."""
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": '{"success":true}'}


class LiveWorld:
    """Rows of a file before the deterministic backend; finished rows are lines of another file, each with an fsync."""

    def __init__(self, base_url: str, folder: Path, at_once: int, interval_s: float) -> None:
        """`rows.jsonl` is read from the folder, and `finished.jsonl` is written to it."""
        self.base_url, self.at_once, self.interval_s = base_url, at_once, interval_s
        self._url = f"{base_url}/chat/completions"
        self._rows = [orjson.loads(line) for line in (folder / "rows.jsonl").read_bytes().splitlines()]
        self._tools = [as_chat_tool(tool) for tool in self._rows[0]["responses_create_params"]["tools"]]
        path = folder / "finished.jsonl"
        ended = finished(path)
        self._output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._ends = Ends(range(len(self._rows)), ended, at_once)
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def begin(self) -> None:
        """Nothing is timed here."""

    async def each(self, run: Callable[[int], Awaitable[None]]) -> None:
        """So many at a time as the run allows; then the connections of this event loop are closed."""
        await self._ends.each(run)
        for session in self._sessions.values():
            await session.close()

    async def ended(self, episode: int) -> None:
        """Once its row is on the disk."""
        await self._ends.ended(episode)

    def start(self, episode: int) -> list[ChatMessage]:
        """The row's own messages."""
        return list(self._rows[episode]["responses_create_params"]["input"])

    async def model(self, episode: int, messages: Sequence[ChatMessage]) -> ChatMessage:
        """Streamed, so that the backend notices when this process is gone."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            limits = aiohttp.ClientTimeout(total=PATIENCE_S)
            self._sessions[loop] = aiohttp.ClientSession(
                timeout=limits, connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**20
            )
        body = {"model": DEFAULT_MODEL, "messages": list(messages), "tools": self._tools, "stream": True}
        async with self._sessions[loop].post(self._url, json=body, headers={CALL_HEADER: "peers"}) as answer:
            answer.raise_for_status()
            deltas = [
                orjson.loads(line[6:])["choices"][0]["delta"]
                async for line in answer.content
                if line.startswith(b"data: {")
            ]
        return joined(deltas)

    async def tool(self, episode: int, message: ChatMessage) -> ChatMessage:
        """It always succeeds."""
        return tool_message(message)

    def finish(self, episode: int, messages: Sequence[ChatMessage]) -> None:
        """A line and an fsync."""
        if self._ends.end(episode):
            os.write(self._output, orjson.dumps({"episode": episode, "messages": list(messages)}) + b"\n")
            os.fsync(self._output)


def finished(path: Path) -> set[int]:
    """The episodes that have a whole row."""
    if not path.exists():
        return set()
    lines = path.read_bytes().split(b"\n")[:-1]
    return {orjson.loads(line)["episode"] for line in lines}


def as_chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of the responses API as the chat API has it."""
    return {"type": "function", "function": {key: tool[key] for key in ("name", "description", "parameters")}}


def joined(deltas: Iterable[dict[str, Any]]) -> ChatMessage:
    """The message that a stream comes to."""
    text, calls = "", dict[int, dict[str, Any]]()
    for delta in deltas:
        text += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            call = calls.setdefault(part["index"], empty)
            call["id"] = part.get("id") or call["id"]
            for key in ("name", "arguments"):
                call["function"][key] += part["function"].get(key) or ""
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls.values())} if calls else {})

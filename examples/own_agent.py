"""An agent of one's own: it drafts, has its draft counted by a tool, and says the final word; exactly continuable."""

from collections.abc import Mapping
from typing import Any

import anyio

from midflight import (
    Agent,
    Final,
    Held,
    Life,
    LocalPeer,
    Next,
    Reply,
    Request,
    ResourcesServer,
    ResourcesSession,
    Session,
    StepContext,
    tool,
)


class Drafting(Agent):
    """Asks for a draft, has its words counted, and shortens it until it is short enough."""

    async def start(self, held: Held[Session], body: Mapping[str, Any]) -> Any:
        """The first state: plain JSON, and everything that the steps need."""
        return {"asked": body["input"], "draft": None, "words": None, "tries_left": 5}

    async def step(self, context: StepContext, state: Any) -> Next | Final:
        """One call at most, then a boundary: a new state, never the old one changed."""
        if state["draft"] is None:
            reply = await context.model("/v1/responses", {"input": state["asked"]})
            return Next({**state, "draft": reply.body["text"]})
        if state["words"] is None:
            reply = await context.tool("count_words", {"text": state["draft"]})
            return Next({**state, "words": reply.body})
        if state["words"] > 3 and state["tries_left"]:
            asked = f"{state['words']} words are too many: {state['draft']}"
            return Next({"asked": asked, "draft": None, "words": None, "tries_left": state["tries_left"] - 1})
        return Final({"output": [], "text": state["draft"]})


class Words(ResourcesServer):
    """Counts words."""

    checkpoint_mode = "stateless"

    @tool
    async def count_words(self, session: ResourcesSession, text: str) -> int:
        """How many words a text has."""
        return len(text.split())

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 for at most three words."""
        return {"reward": float(len(row["response"]["text"].split()) <= 3)}


class Shortener:
    """Stands for a policy model: repeats all but the last word of what it is asked."""

    role = "model.main"

    async def call(self, request: Request) -> Reply:
        """One generation."""
        said = request.body["input"].rpartition(": ")[2].split()
        return Reply(200, {"text": " ".join(said[:-1])})


async def main() -> None:
    """Run one episode over the agent's own /run."""
    words = Words()
    agent = Drafting(Shortener(), {words.role: LocalPeer(words)})
    row = {"responses_create_params": {"input": "say: one two three four five"}}
    reply = await agent.handle(Request(route="/run", body=row, life=Life("r0", 1, 0, 0)))
    print(reply.body["response"]["text"], reply.body["reward"])


if __name__ == "__main__":
    anyio.run(main)

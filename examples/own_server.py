"""A resources server of one's own: a to-do list for each session, with tools, a score, and exact checkpoints."""

from typing import Any

import anyio

from midflight import (
    Case,
    Conformance,
    Life,
    LocalPeer,
    Request,
    ResourcesServer,
    ResourcesSession,
    ToolCall,
    ToolError,
    tool,
)


class TodoServer(ResourcesServer):
    """Every session has a list, and the reward is 1.0 once all of it is ticked off."""

    checkpoint_mode = "exported"  # session.state is a JSON dict, so there is nothing more to write
    checkpoint_verify = "replay"  # verify only reads

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """Begin with the row's to-dos."""
        session.state["open"] = list(row["todos"])

    @tool
    async def tick_off(self, session: ResourcesSession, todo: str) -> dict[str, Any]:
        """Tick off one item of the list."""
        if todo not in session.state["open"]:
            raise ToolError(f"there is no {todo!r}")
        session.state["open"].remove(todo)
        return {"left": len(session.state["open"])}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 if nothing is left."""
        return {"reward": float(not session.state["open"])}

    @classmethod
    def conformance(cls) -> Conformance:
        """Rollouts for the conformance kit: right and wrong ones, with a call that is refused."""
        chores = ["sweep", "mop", "dust", "shop"]
        cases = []
        for number in range(1, len(chores) + 1):
            done = [ToolCall(name="tick_off", arguments={"todo": chore}) for chore in [*chores[:number], "fly"]]
            cases.append(Case(row={"todos": chores[:number]}, calls=done, said="All done."))
            cases.append(Case(row={"todos": chores}, calls=done, said="I have done what I could."))
        return Conformance(cases=cases)


async def main() -> None:
    """Play one episode against it, in process."""
    server = LocalPeer(TodoServer())
    life = Life("todo-1", epoch=1, attempt=0, n=0)
    row = {"todos": ["sweep"]}
    for route, body in (
        ("/seed_session", row),
        ("/tick_off", {"todo": "mop"}),
        ("/tick_off", {"todo": "sweep"}),
        ("/verify", {**row, "response": {"output": []}}),
    ):
        reply = await server.call(Request(route=route, body=body, life=life))
        print(route, reply.status, reply.body)


if __name__ == "__main__":
    anyio.run(main)

"""LangGraph with its SQLite checkpointer: a graph of two nodes, model and tool, and a thread for each episode.

`durability="sync"`, so that a step is on the disk before the next one begins; LangGraph's default writes it while the
next one runs.
"""

import operator
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

from .plain import imported
from .protocol import ChatMessage, Place, Saves, World

MOST_STEPS = 10_000


class State(TypedDict):
    """Of the graph; what nodes return is appended."""

    episode: int
    messages: Annotated[list[ChatMessage], operator.add]


class LangGraph:
    """A checkpoint after each node."""

    title = "LangGraph, SQLite"
    database = False
    by_checkpoint = False
    saves = Saves(
        restorable="after every step",
        tokens="whatever the state has; the whole state again at each step",
        prefix="lost",
        effects="again, those of the step that was cut",
        processes="one process writes",
        whole="no, each thread by itself",
    )

    def versions(self) -> Mapping[str, str]:
        """Of graph and checkpointer."""
        imported("langgraph.graph", "langgraph.checkpoint.sqlite.aio")
        return {name: version(name) for name in ("langgraph", "langgraph-checkpoint-sqlite")}

    async def run(self, place: Place, world: World) -> None:
        """A thread that is known goes on, any other one starts."""
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncExitStack() as stack:
            saver = None
            if place.durable:
                path = str(place.folder / "langgraph.sqlite")
                saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
                await saver.setup()
            graph = _graph(world, saver)
            world.begin()

            async def episode(number: int) -> None:
                thread = {"configurable": {"thread_id": str(number)}, "recursion_limit": MOST_STEPS}
                known = saver is not None and await saver.aget_tuple(thread) is not None
                start = None if known else {"episode": number, "messages": world.start(number)}
                found = await graph.ainvoke(start, thread, **({"durability": "sync"} if saver else {}))
                world.finish(number, found["messages"])

            await world.each(episode)

    async def settle(self) -> None:
        """Every step has been."""


def _graph(world: World, saver: Any) -> Any:
    from langgraph.graph import END, START, StateGraph

    async def model(state: State) -> dict[str, Any]:
        return {"messages": [await world.model(state["episode"], state["messages"])]}

    async def tool(state: State) -> dict[str, Any]:
        return {"messages": [await world.tool(state["episode"], state["messages"][-1])]}

    def after_model(state: State) -> str:
        return "tool" if state["messages"][-1].get("tool_calls") else END

    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", after_model)
    builder.add_edge("tool", "model")
    return builder.compile(checkpointer=saver)

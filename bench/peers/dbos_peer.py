"""DBOS: a workflow for each episode, with a step for each model call and for each tool call.

What it does after a kill is its own recovery: workflows that were pending are run again at launch, and steps that have
ended are not.
"""

from collections.abc import Mapping
from importlib.metadata import version

from .plain import imported
from .protocol import ChatMessage, Place, Saves, World, loop


class Dbos:
    """On SQLite."""

    title = "DBOS, SQLite"
    database = False
    by_checkpoint = False
    saves = Saves(
        restorable="after every step",
        tokens="whatever the step returns",
        prefix="lost",
        effects="again, those of the step that was cut; once for a transaction of its datasource",
        processes="one host",
        whole="no, each workflow by itself",
    )

    def versions(self) -> Mapping[str, str]:
        """Of the library."""
        imported("dbos")
        return {"dbos": version("dbos")}

    def _url(self, place: Place) -> str:
        return f"sqlite:///{place.folder / 'dbos.sqlite'}"

    async def run(self, place: Place, world: World) -> None:
        """Launch, which recovers, and start what it does not know yet."""
        if not place.durable:
            world.begin()
            await world.each(lambda number: loop(world, number, world.start(number)))
            return
        from dbos import DBOS, SetWorkflowID

        DBOS(
            config={
                "name": "peers",
                "system_database_url": self._url(place),
                "application_version": "1",
                "executor_id": "one",
                "run_admin_server": False,
                "log_level": "ERROR",
            }
        )

        async def model_step(episode: int, messages: list[ChatMessage]) -> ChatMessage:
            return await world.model(episode, messages)

        async def tool_step(episode: int, message: ChatMessage) -> ChatMessage:
            return await world.tool(episode, message)

        async def end_step(episode: int, messages: list[ChatMessage]) -> None:
            world.finish(episode, messages)

        model, tool, end = (DBOS.step()(step) for step in (model_step, tool_step, end_step))

        async def episode(number: int) -> None:
            messages = world.start(number)
            while True:
                said = await model(number, messages)
                messages = [*messages, said]
                if not said.get("tool_calls"):
                    await end(number, messages)
                    return
                messages = [*messages, await tool(number, said)]

        workflow = DBOS.workflow()(episode)
        DBOS.launch()
        known: set[str] = set()
        if place.again:
            found = await DBOS.list_workflows_async(load_input=False, load_output=False)
            known = {status.workflow_id for status in found}
        world.begin()

        async def one(number: int) -> None:
            if str(number) not in known:
                with SetWorkflowID(str(number)):
                    await DBOS.start_workflow_async(workflow, number)
            await world.ended(number)

        await world.each(one)

    async def settle(self) -> None:
        """Every step has been."""


class DbosPostgres(Dbos):
    """On PostgreSQL."""

    title = "DBOS, PostgreSQL"
    database = True
    saves = Saves(
        restorable="after every step",
        tokens="whatever the step returns",
        prefix="lost",
        effects="again, those of the step that was cut; once for a transaction of its datasource",
        processes="yes, on any number of hosts",
        whole="no, each workflow by itself",
    )

    def versions(self) -> Mapping[str, str]:
        """Of the library and of its driver."""
        imported("psycopg")
        return {**super().versions(), "psycopg": version("psycopg")}

    def _url(self, place: Place) -> str:
        return place.database_url

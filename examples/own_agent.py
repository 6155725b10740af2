"""An agent of one's own: it has the model plan in words, act, and looks at the outcome itself."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midflight import Agent, Final, Held, Next, Session, StepContext


class Planner(Agent):
    """Plans, works the plan off with tools, and ends with a look of its own at what came of it."""

    def __init__(self, *args: Any, plan_tokens: int = 32, **rest: Any) -> None:
        """`plan_tokens` is an option in run.toml; everything else belongs to every agent."""
        super().__init__(*args, **rest)
        self.plan_tokens = plan_tokens

    async def start(self, held: Held[Session], body: Mapping[str, Any]) -> Any:
        """The first state: plain JSON, and everything that the steps need."""
        return {"asked": body["input"], "tools": body["tools"], "plan": None, "did": [], "calls": [], "over": False}

    async def step(self, context: StepContext, state: Any) -> Next | Final:
        """One call at most, then a boundary: a new state, never the old one changed."""
        if state["plan"] is None:
            body = {"input": state["asked"], "instructions": "Plan.", "max_output_tokens": self.plan_tokens}
            [said] = (await context.model("/v1/responses", body)).body["output"]
            return Next({**state, "plan": said["content"][0]["text"]})
        if state["calls"]:
            call, *calls = state["calls"]
            reply = await context.tool(call["name"], json.loads(call["arguments"]))
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": json.dumps(reply.body)}
            return Next({**state, "did": [*state["did"], output], "calls": calls})
        if not state["over"]:
            body = {"input": [*state["asked"], *state["did"]], "tools": state["tools"], "instructions": state["plan"]}
            said = (await context.model("/v1/responses", body)).body["output"]
            calls = [item for item in said if item["type"] == "function_call"]
            return Next({**state, "did": [*state["did"], *said], "calls": calls, "over": not calls})
        found = await context.tool("get_counter_value", {})
        return Final({"output": state["did"], "plan": state["plan"], "found": found.body["count"]})


if __name__ == "__main__":  # Over examples/own_agent.toml: killed in the middle, and continued.
    killing = Path(__file__).with_name("collect_and_kill.py")
    subprocess.run([sys.executable, str(killing), "own_agent.toml"], check=True)

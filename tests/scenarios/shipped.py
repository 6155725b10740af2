"""Rollouts at servers that ship: each says what its model calls, and what its verifier is told to expect."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from participants import ResourcesServer
from participants.servers.shell import ShellServer
from participants.servers.workplace import WorkplaceServer
from participants.tools import tools_of

from .controller import Controller
from .looking import said
from .stage import Stage
from .tasks import Task

BODIES = ["One.", "Two."]
"""Of the mails that are sent at an office."""
SUPPORT = "tests.support.logged_shipped"
Made = Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Shipped(Task):
    """Makes the tool calls `made`, one a turn, and says `said`; `fields` are those that its verifier reads."""

    made: Made = ()
    said: str = "Done."
    fields: Mapping[str, Any] = field(default_factory=dict)
    server: type[ResourcesServer] = ResourcesServer

    @property
    def calls(self) -> list[int]:
        """The model calls of its agent, numbered from 1."""
        return list(range(1, len(self.made) + 2))

    @property
    def tools(self) -> list[Any]:
        """By name."""
        return [name for name, _ in self.made]

    @property
    def row(self) -> dict[str, Any]:
        """As a dataset has it."""
        turns: list[dict[str, Any]] = [{"call": {"name": name, "arguments": given}} for name, given in self.made]
        script = json.dumps([*turns, {"text": self.said}])
        asked = [{"role": "user", "content": f"{self.prompt_of(1)}<script>{script}</script>"}]
        tools = [each.schema for each in tools_of(self.server).values()]
        return {"responses_create_params": {"input": asked, "tools": tools}, **self.fields}

    def prompt_of(self, call: int) -> str:
        """As that of a Task."""
        if call == 1:
            return f"Task {self.number}: "
        name, given = self.made[call - 2]
        return f"{name}\n{json.dumps(given, separators=(',', ':'))}"


def run(command: str) -> tuple[str, Mapping[str, Any]]:
    """A call of the shell."""
    return "run_command", {"command": command}


# The shell


def at_a_shell(stage: Stage) -> Path:
    """Let the stage have one; gives the folder below which its sessions lie."""
    root = stage.folder / "shell"
    stage.resources, stage.counter = f"{SUPPORT}:LoggedShell", {"root": str(root)}
    return root


def shell_folders(root: Path) -> list[Path]:
    """Of all sessions, those of dead servers among them."""
    return [path for path in root.glob("server-*/*") if path.name != ".lock"]


def shell_task(number: int, alias: str = "") -> Shipped:
    """Adds a line, adds another one through a link and a folder that the first call made, and reads both."""
    made = [
        run(f"echo {number} >> list && mkdir -m 700 sub && ln -s ../list sub/link"),
        run("echo two >> sub/link"),
        ("read_file", {"path": "list"}),
    ]
    text = f"none\n{number}\ntwo\n"
    check = {"command": "wc -l < sub/link", "stdout": "3\n"}
    fields = {"files": {"list": "none\n"}, "expected_files": {"list": text}, "check": check}
    return Shipped(number, alias=alias, made=made, fields=fields, server=ShellServer)


# The office


def at_an_office(stage: Stage) -> None:
    """Let the stage have one."""
    stage.resources, stage.counter = f"{SUPPORT}:LoggedWorkplace", {}


def office_task(number: int, alias: str = "") -> Shipped:
    """Sends two mails, and finds both, which stand in the session alone."""
    mails = [{"recipient": "ann@example.com", "subject": f"Order {number}", "body": body} for body in BODIES]
    sent = [("email_send_email", mail) for mail in mails]
    made = [*sent, ("email_search_emails", {"query": f"Order {number}"})]
    fields = {"ground_truth": [{"name": name, "arguments": json.dumps(mail)} for name, mail in sent]}
    return Shipped(number, alias=alias, made=made, fields=fields, server=WorkplaceServer)


# What they say


def told(controller: Controller, task: Task) -> list[Any]:
    """What its tools answered, in order."""
    items = said(controller, task)
    return [json.loads(item["output"]) for item in items if item["type"] == "function_call_output"]

"""A black-box agent for tests: a program that does what its standard input says, with the standard library alone.

The prompt holds `do: ` and a JSON list of acts, such as `["chat", "hello"]`; what the last one said is the answer.
Without, it is a tool loop over the task.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

SLEEPS = [sys.executable, "-c", "import time; time.sleep(1000)"]


def fetch(url: str, body: Any) -> str:
    """The answer. Raises HTTPError where it is a refusal."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return str(reply.read().decode())


def post(url: str, body: Any) -> str:
    """What is answered: text of the model, a tool's JSON, or the status and code of a refusal."""
    try:
        said = fetch(url, body)
    except urllib.error.HTTPError as error:
        told = json.loads(error.read())["error"]
        return f"{error.code} {told['code'] if isinstance(told, dict) else told}"
    if said.startswith("data:"):
        return said
    found = json.loads(said)
    return str(found["choices"][0]["message"]["content"]) if "choices" in found else json.dumps(found)


def chat(text: str, *, stream: bool = False) -> str:
    """One turn."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}], "stream": stream}
    return post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body)


def start_family() -> None:
    """A child, and a grandchild that belongs to nobody and to no session of ours."""
    subprocess.Popen(SLEEPS)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(SLEEPS[0], SLEEPS)
        os._exit(0)
    os.wait()


def act(name: str, *given: Any) -> str:
    """One act; gives what it said."""
    match name:
        case "chat" | "stream":
            return chat(given[0], stream=name == "stream")
        case "url":
            return chat(f"my url is {os.environ['OPENAI_BASE_URL']}")
        case "tool":
            return post(f"{os.environ['MIDFLIGHT_TOOLS_URL']}/{given[0]}", given[1])
        case "family":
            start_family()
        case "beside":
            if os.fork() == 0:
                chat(given[0])
                os._exit(0)
        case "wait":
            time.sleep(1000)
        case "exit":
            sys.stderr.write("this went wrong\n")
            sys.exit(given[0])
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "flood":
            while True:
                sys.stdout.write("x" * 10_000)
        case "write":
            with open(given[0], "w", encoding="utf-8") as file:
                file.write(given[1])
        case "link":
            os.symlink(given[1], given[0])
        case "read":
            with open(given[0], encoding="utf-8") as file:
                return file.read()
        case "say":
            return str(given[0])
    return ""


def loop() -> str:
    """Ask, call the tools that are asked for, and ask again; gives the last word."""
    with open("task.json", encoding="utf-8") as file:
        task = json.load(file)
    tools = [
        {"type": "function", "function": {"name": t["name"], "parameters": t["parameters"]}} for t in task["tools"]
    ]
    messages = list(task["input"])
    while True:
        body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": tools}
        said = json.loads(fetch(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body))["choices"][0]["message"]
        if not said.get("tool_calls"):
            return str(said["content"])
        messages.append(said)
        for call in said["tool_calls"]:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            found = fetch(f"{os.environ['MIDFLIGHT_TOOLS_URL']}/{name}", arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})


def main() -> None:
    """Act."""
    prompt = sys.stdin.read()
    if "do: " not in prompt:
        sys.stdout.write(loop())
        return
    said = [act(*each) for each in json.loads(prompt.partition("do: ")[2])]
    sys.stdout.write(said[-1])


if __name__ == "__main__":
    main()

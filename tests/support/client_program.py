"""A black-box agent over OpenAI's own client: both APIs, streamed and whole, and the models; says what it heard."""

import json
import sys
from typing import Any

from openai import APIStatusError, OpenAI

SCRIPT = '<script>[{"filler": 12, "text": " and done"}]</script>'


def main() -> None:
    """Ask in every way, and compare."""
    client = OpenAI(max_retries=0)  # URL and key are in the environment.
    [model] = [each.id for each in client.models.list()]
    messages: Any = [{"role": "user", "content": SCRIPT}]
    chat = client.chat.completions.create(model=model, messages=messages)
    pieces: Any = client.chat.completions.create(model=model, messages=messages, stream=True)
    streamed = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    whole = client.responses.create(model=model, input=SCRIPT)
    with client.responses.stream(model=model, input=SCRIPT) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_response()
    try:
        client.embeddings.create(model=model, input="x")
        refused = 0
    except APIStatusError as error:
        refused = error.status_code
    said = {chat.choices[0].message.content, "".join(streamed), whole.output_text, final.output_text}
    found = {"said": sorted(map(str, said)), "pieces": len(streamed), "events": len(events), "refused": refused}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

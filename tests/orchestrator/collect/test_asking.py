"""A row that cannot be sent is told as the row's fault, once, and parameters that cannot be are refused."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.collect import ConfigError

from .test_in_process import TOOLS, Events, OneTool, configured, named, run

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
UNSENDABLE: list[dict[str, Any]] = [
    {"input": 5},
    {"input": {"role": "user"}},
    {"input": ["hello"]},
    {"tools": 5},
    {"tools": [5]},
    {"tools": {"type": "function"}},
    {"tools": [{"type": "function", "function": 5}]},
    {"tools": [{"type": "function", "name": ["a"]}]},
    {"metadata": [1]},
    {"reasoning": "high"},
    {"text": 5},
]
IN_CHAT: list[dict[str, Any]] = [
    {"tools": [{"type": "web_search"}]},
    {"input": [{"type": "item_reference", "id": "x"}]},
    {"text": {"format": 5}},
]


@pytest.mark.enumerated(2)
@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("typed", [False, True])
async def test_a_row_that_cannot_be_sent_fails_at_its_seed_and_once(tmp_path: Path, dialect: str, typed: bool) -> None:
    """Whatever is wrong with its request, and in every kind of row; nothing is asked of the model, and others go on."""
    wrong = UNSENDABLE + (IN_CHAT if dialect == "chat" else [])
    config = configured(tmp_path)
    rows = []
    for number, own in enumerate(wrong):
        asked = {"input": [{"role": "user", "content": "go"}], "tools": TOOLS, **own}
        row: dict[str, Any] = {"responses_create_params": asked, "initial_count": 0, "expected_count": number}
        if typed:
            task = {"responses_create_params": asked, "task_data": {"initial_count": 0}}
            row = {"task_id": {"taskset": "counter", "task_id": str(number)}, "task_input": task}
        rows.append(row)
    await anyio.Path(tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    events, upstream = Events(), OneTool()
    model = config.model.model_copy(update={"dialect": dialect})
    summary = await run(config.model_copy(update={"model": model}), upstream, events)
    assert (summary.failed_for_good, summary.failures, summary.rows) == (len(wrong), len(wrong), 0)
    for failure in named(events, "failure"):
        assert failure["final"]
        assert failure["_ng_failure_stage"] == "seed"
        assert failure["_ng_failure_class"] == "invalid_request"
        assert "responses_create_params cannot be sent: " in failure["_ng_failure_message"]
    assert upstream.calls == 0


@pytest.mark.parametrize("parameters", UNSENDABLE)
async def test_parameters_that_no_row_can_be_sent_with_are_refused(tmp_path: Path, parameters: dict[str, Any]) -> None:
    """Before there is a store, by the name of their table."""
    config = configured(tmp_path)
    model = config.model.model_copy(update={"parameters": parameters})
    with pytest.raises(ConfigError, match=r"^model\.parameters: .*(not a|neither|no text)"):
        await run(config.model_copy(update={"model": model}), OneTool())
    assert not (tmp_path / "store").exists()

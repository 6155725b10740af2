"""From a result to what is trained on: ids out of the capture ledger, log probabilities and scores out of the row."""

import array
import base64
from collections.abc import Sequence
from typing import Any

import httpx
import orjson

import midflight
from orchestrator.training import Result
from participants.ledger import LEDGER_PREFIX, CaptureKey, check

Sample = dict[str, Any]
"""JSON, for the buffer is saved: `ids`; for each generated one its place `at`, its `logprobs` and the `scores` of its
turn; `reward`; and `carried`, how many calls were made before a crash and not made again."""


class RolloutFailed(Exception):
    """A rollout came without a row."""


async def sample_of(result: Result, client: httpx.AsyncClient, model_url: str, version: str) -> Sample:
    """One rollout. Raises RolloutFailed, and ValueError where the ledger is not what it should be."""
    if result.row is None:
        raise RolloutFailed(f"{result.rollout_id}: {result.failure}")
    rows, carried = await _ledger_rows(client, f"{model_url}{LEDGER_PREFIX}", result.life)
    versions = {segment[2] for row in rows for segment in row["segments"]}
    if versions != {version}:
        raise ValueError(f"{result.rollout_id} was made with the weights {versions}, not with {version} alone")
    ids, at, turns = _tokens(rows)
    logprobs = _logprobs(result.row["response"]["output"])
    if len(logprobs) != len(at):
        raise ValueError(f"{result.rollout_id} has {len(at)} tokens and {len(logprobs)} log probabilities")
    scores = [result.row["scores"][turn] for turn in turns]
    return {
        "ids": ids, "at": at, "logprobs": logprobs, "scores": scores,
        "reward": result.row["reward"], "carried": carried,
    }  # fmt: skip


async def _ledger_rows(client: httpx.AsyncClient, url: str, life: midflight.Life) -> tuple[list[dict[str, Any]], int]:
    """The completed calls in order, after all digests were worked out again; and how many an earlier life has made."""
    manifest, path = await _manifest(client, url, life)
    lines = (await client.get(f"{path}/rows")).raise_for_status().content.splitlines()
    rows = [orjson.loads(line) for line in lines]
    lives = [*manifest["origins"], manifest["life"]]
    if wrong := check(rows, lives=lives, count=manifest["rows"], last=manifest["last"]):
        raise ValueError(f"the ledger of {manifest['life']} is wrong: {wrong}")
    return [row for row in rows if row["outcome"] == "completed"], sum(row["life"] != str(life) for row in rows)


async def _manifest(client: httpx.AsyncClient, url: str, life: midflight.Life) -> tuple[dict[str, Any], str]:
    """Of the newest attempt to have called the model: one restored behind its last call has no ledger."""
    for attempt in range(life.attempt, -1, -1):
        path = f"{url}/{CaptureKey(life.rollout_id, attempt)}"
        reply = await client.get(f"{path}/manifest")
        if reply.is_success:
            return reply.json(), path
    raise ValueError(f"{life} has no ledger: {reply.text}")


def _tokens(rows: Sequence[dict[str, Any]]) -> tuple[list[int], list[int], list[int]]:
    """The whole conversation as ids, the places of those that were generated, and in which call each was."""
    ids: list[int] = []
    at: list[int] = []
    turns: list[int] = []
    for turn, row in enumerate(rows):
        if turn and not row["inline"]["extends"]:
            raise ValueError(f"call {row['call']} does not go on where the one before ended")
        said = _unpacked(row["inline"]["output"])
        ids += _unpacked(row["inline"]["prompt"])
        at += range(len(ids), len(ids) + len(said))
        turns += [turn] * len(said)
        ids += said
    return ids, at, turns


def _unpacked(text: str) -> list[int]:
    return array.array("i", base64.b64decode(text)).tolist()


def _logprobs(output: Sequence[dict[str, Any]]) -> list[float]:
    parts = [part for item in output if item.get("role") == "assistant" for part in item["content"]]
    return [entry["logprob"] for part in parts for entry in part["logprobs"]]

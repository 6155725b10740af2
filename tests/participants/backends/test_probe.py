"""The probe before each kind of server, before those that are not what they declare, and before nobody."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from participants import OpenAIEndpoint
from participants.backends import DECLARED, NOTHING, Capabilities, Feature, Probed, declared, probe
from participants.inference.tokens import END
from tests.support.processes import free_port
from tests.support.rude import answer, hang, rude_server, stream
from tests.support.wires import (
    CHAT,
    COMPLETIONS,
    CONTEXT,
    MODEL,
    RESPONSES,
    LlamaCpp,
    Sglang,
    Strict,
    Vllm,
    Wire,
    drifting,
    served,
    silent_on_ids,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
MAX_CALLS, MAX_TOKENS = 13, 60
KINDS: dict[str, Callable[..., Wire]] = {"vllm": Vllm, "sglang": Sglang, "llama.cpp": LlamaCpp}


async def probed(kind: Callable[..., Wire], model: str = "", **options: Any) -> tuple[Probed, Wire]:
    """The probe of such a server."""
    async with served(kind, **options) as (url, wire, backend), OpenAIEndpoint(url, retry_for_s=0.0) as endpoint:
        found = await probe(endpoint, model)
        assert len(wire.requests) <= MAX_CALLS
        assert backend.calls.counts()["generated"] <= MAX_TOKENS
        return found, wire


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_kind_declares_is_seen_on_its_wire(kind: str) -> None:
    """Nothing is taken away from it and nothing is added; the context length comes from the server."""
    found, _ = await probed(KINDS[kind])
    assert (found.notes, found.reached, found.model) == ((), True, MODEL)
    assert found.capabilities == replace(DECLARED[kind], context_length=CONTEXT)


async def test_the_deterministic_backend_has_all_but_the_store_of_a_worker() -> None:
    """Without a token store nothing is staged, and the rest is as declared."""

    class Own(Wire):
        owner = "midflight"

    found, _ = await probed(Own)
    assert found.notes == ("declared and not seen: staging",)
    assert found.capabilities == replace(DECLARED["midflight"], staging=False, context_length=CONTEXT)
    assert {ord(END)} == found.capabilities.end_ids


async def test_a_chat_that_refuses_ids_in_streams_is_still_served() -> None:
    """SGLang: the route is there, ids are asked for on completions alone, and only those are declared."""
    found, wire = await probed(Sglang)
    asked = [body.get("return_token_ids") for path, body in wire.requests if path == CHAT and body.get("stream")]
    assert asked == [True, None]
    assert found.capabilities.ids_routes == {COMPLETIONS}
    assert not found.capabilities.token_ids_out
    assert found.capabilities.routes == {COMPLETIONS, CHAT, RESPONSES}
    assert found.weights == "default"  # named in whole replies


async def test_a_strict_endpoint_is_asked_plainly() -> None:
    """No completions and no unknown fields: chat and responses are served, and nothing can be continued by ids."""
    found, _ = await probed(Strict)
    can = found.capabilities
    assert (can.kind, set(can.routes), can.streams) == ("openai", {CHAT, RESPONSES}, True)
    assert not any((can.token_ids_in, can.token_ids_out, can.tokenize, can.continue_final_message, can.bit_equal))
    assert Feature.LOGPROBS not in can.declared  # seen on completions, which are not there


async def test_a_backend_that_differs_after_a_cut_is_not_bit_equal() -> None:
    """The declaration is taken away with the reason; ids in and out stay."""
    found, _ = await probed(Vllm, change=drifting)
    assert not found.capabilities.bit_equal
    assert found.capabilities.token_ids_in
    assert "declared and not seen: bit_equal, the rest after a cut differed" in found.notes


async def test_an_older_version_that_names_no_ids_loses_them_and_keeps_ids_in() -> None:
    """The prompt's ids come from the tokenizer then, and their number is seen in the usage."""
    found, _ = await probed(Vllm, change=silent_on_ids)
    can = found.capabilities
    assert (can.token_ids_out, can.ids_routes, can.token_ids_in, can.tokenize) == (False, frozenset(), True, True)
    assert "declared and not seen: bit_equal, nothing could be compared" in found.notes
    assert "declared and not seen: token_ids_out" in found.notes


async def test_what_is_seen_and_not_declared_is_used() -> None:
    """A server by another name that names ids and takes them."""

    class Other(Vllm):
        owner = "somebody"

    found, _ = await probed(Other)
    can = found.capabilities
    assert (can.kind, can.token_ids_out, can.token_ids_in, can.tokenize) == ("openai", True, True, True)
    assert not can.bit_equal  # one cut proves little without a declaration
    assert "seen: token_ids_in" in found.notes


async def test_a_tokenizer_that_disagrees_with_the_prompt_is_not_used() -> None:
    """Ids that the prompt does not have would continue something else."""

    def wrong(path: str, document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "tokens": document["tokens"][1:]} if path == "/tokenize" else document

    found, _ = await probed(Vllm, change=wrong)
    assert not found.capabilities.tokenize
    assert found.capabilities.token_ids_in
    assert "/tokenize does not give the ids that the prompt has" in found.notes


async def test_a_flag_that_is_ignored_is_seen() -> None:
    """`continue_final_message` without effect leaves an end mark and a new turn in the prompt."""

    class Deaf(Vllm):
        def asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in super().asked(path, body).items() if key != "continue_final_message"}

    found, _ = await probed(Deaf)
    assert not found.capabilities.continue_final_message


async def test_a_model_that_is_not_served_is_said_by_name() -> None:
    """The list does not have it, each route refuses it, and nothing is claimed."""
    found, _ = await probed(Vllm, "other")
    assert found.reached
    assert any("does not name the model 'other'" in note for note in found.notes)
    assert found.capabilities.routes == frozenset()
    assert not found.capabilities.streams


async def test_nobody_at_the_address_is_no_failure() -> None:
    """Nothing is known, and the note says who did not answer."""
    async with OpenAIEndpoint(f"http://127.0.0.1:{free_port()}/v1") as endpoint:
        found = await probe(endpoint, MODEL)
    assert (found.reached, found.capabilities) == (False, NOTHING)
    assert "did not answer" in found.notes[0]


async def test_a_silent_server_is_left_at_the_deadline() -> None:
    """It accepts and says nothing: the probe ends in time."""
    async with rude_server(hang) as server, OpenAIEndpoint(server.base_url) as endpoint:
        found = await probe(endpoint, MODEL, deadline_s=0.1)
    assert (found.reached, found.capabilities) == (False, NOTHING)
    assert "took over 0.1 s" in found.notes[-1]


@pytest.mark.parametrize(
    "body", [b"<html>", b"null", b"[]", b'{"choices": 3}', b'{"data": [{"id": 7}], "tokens": [[]]}']
)
async def test_whatever_is_answered_is_no_error(body: bytes) -> None:
    """Pages, wrong types and events that are none: nothing is seen."""
    behaviours = (answer(200, body), stream([b"data: " + body + b"\n\n"]), answer(200, body))
    async with rude_server(*behaviours) as server, OpenAIEndpoint(server.base_url) as endpoint:
        found = await probe(endpoint, MODEL)
    assert found.reached
    assert not found.capabilities.token_ids_in


def test_calls_may_be_continued_where_their_format_is_known() -> None:
    """The operator names the format; the deterministic backend has its own; an unknown kind is a plain endpoint."""
    assert Feature.TOOLS not in declared("vllm").declared
    assert Feature.TOOLS in declared("vllm", tool_format="hermes").declared
    assert declared("midflight").tool_format == "marks"
    assert declared("unheard of") == DECLARED["openai"]


def test_nobody_declares_what_a_cut_changes() -> None:
    """Seeds and penalties begin again at a cut but in our own backends, grammars in all; reasoning is read by none."""
    never = {Feature.GRAMMAR, Feature.REASONING, Feature.OTHER}
    kinds: list[Capabilities] = list(DECLARED.values())
    assert all(not (each.declared & never) for each in kinds)
    ours = {Feature.SEED, Feature.PENALTIES}
    assert [each.kind for each in kinds if ours & each.declared] == ["midflight"]
    assert ours <= declared("midflight").declared

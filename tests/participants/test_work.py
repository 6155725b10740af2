"""What a rollout need not do again, counted from what agent, model and the owner of its episode hold."""

import pytest

from orchestrator.collect.saved import Work, work_of_row
from participants.data import CallId
from participants.wire import Worked
from participants.work import Count, at_newest, joined, of_reply, of_response

pytestmark = pytest.mark.unit

BEHIND: Count = 2, 30
AGENT = "agent", Worked(lives={"r0": BEHIND}, boundaries={"r0": 3})
RESPONSE = {"metadata": {"midflight_steps": "4"}, "usage": {"output_tokens": 50}}


def model_with_replies_at(*boundaries: int) -> tuple[str, Worked]:
    """A model that has kept a reply of five tokens for each."""
    replies = [(CallId("agent.main", n, 0), of_reply({"usage": {"completion_tokens": 5}})) for n in boundaries]
    count, newest = at_newest(replies)
    return "model", Worked(lives={"r0": count}, boundaries={"r0": newest})


def test_a_reply_that_was_kept_for_the_next_step_is_saved_beside_the_steps_behind_the_boundary() -> None:
    """One of an earlier step has been counted by the agent already."""
    assert joined([AGENT]) == {"r0": (2, 30)}
    assert joined([AGENT, model_with_replies_at(2)]) == {"r0": (2, 30)}
    assert joined([AGENT, model_with_replies_at(2, 3)]) == {"r0": (3, 35)}


def test_a_rollout_past_its_activation_has_all_of_it_in_its_response() -> None:
    """Whatever agent and model still hold; its row says the same."""
    count = of_response(RESPONSE)
    assert count is not None
    environment = "environment", Worked(lives={"r0": count}, boundaries={})
    assert joined([AGENT, model_with_replies_at(3), environment]) == {"r0": (4, 50)}
    assert work_of_row({"response": RESPONSE}) == Work(4, 50)


def test_what_says_nothing_saves_nothing() -> None:
    """A row without a response, a response that counts in a way of its own, a rollout that nobody holds."""
    assert work_of_row({}) == work_of_row({"response": "text"}) == Work()
    assert of_response({"metadata": ["a"], "usage": {"output_tokens": {"all": 3}}}) == (0, 0)
    assert of_response({"metadata": {"midflight_steps": "few"}, "usage": "much"}) == (0, 0)
    assert joined([]) == {}

"""Who counts as lost, and who is only slow or had a connection break."""

from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest

from orchestrator.collect import losses
from orchestrator.collect.losses import Losses
from orchestrator.collect.servers import by_server
from orchestrator.errors import ControlFailed
from orchestrator.fleet import Fleet, Member
from orchestrator.links import NoAnswer
from participants import Capabilities, Code, Modes, ParticipantError

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

EPOCH = 3


def capabilities(incarnation: str = "i", epoch: int = EPOCH, name: str = "main") -> Capabilities:
    """Of an agent."""
    return Capabilities(
        kind="agent",
        name=name,
        process="w0",
        incarnation=incarnation,
        run="r",
        epoch=epoch,
        modes=Modes(),
        software={},
    )


Answer = Capabilities | Exception | None


class ScriptedLink:
    """Answers each look with the next of these, and the last one from then on; None hangs."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def capabilities(self) -> Capabilities:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await anyio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer


def losses_of(*links: ScriptedLink, gone: Callable[[], dict[str, str]] = dict) -> Losses:
    """A fleet of agents that was found as it is in epoch 3."""
    members = tuple(
        Member(link, capabilities(epoch=0, name=f"a{number}"))  # type: ignore[arg-type]
        for number, link in enumerate(links)
    )
    fleet = Fleet(members, "r", EPOCH)
    return Losses(lambda: fleet, gone)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the pauses of a real fleet."""
    for name, seconds in {"LOOK_S": 0.01, "ANSWER_S": 0.02, "SILENT_S": 0.1, "AGAIN_S": 0.001}.items():
        monkeypatch.setattr(losses, name, seconds)


BROKEN = ConnectionError("refused")
FINE = capabilities()


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ((capabilities("other"),), "started anew"),
        ((capabilities(epoch=4),), "epoch 4 was adopted"),
        ((BROKEN,), "does not answer: refused"),
        ((NoAnswer("http://h", httpx.ConnectError("All")),), "it does not answer: nobody takes the connection"),
        ((None,), "has not answered for"),
        ((ParticipantError(Code.UNAUTHORIZED, "another token"),), "another token"),
        ((FINE, FINE, capabilities("other")), "started anew"),
        ((BROKEN, capabilities("other")), "started anew"),
    ],
)
async def test_who_is_lost_is_told_with_what_tells_it(answers: tuple[Answer, ...], why: str) -> None:
    """Another process in its place, another controller's, nobody, and one that hangs."""
    with anyio.fail_after(20):
        found = await losses_of(ScriptedLink(FINE), ScriptedLink(*answers)).watch()
    assert list(found) == ["agent.a1/w0"]
    assert why in found["agent.a1/w0"]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("answers", [(FINE,), (BROKEN, FINE), (BROKEN, BROKEN, FINE), (None, FINE), (None, None, FINE)])
async def test_who_is_slow_or_had_a_connection_break_is_not_lost(answers: tuple[Answer, ...]) -> None:
    """He is waited for, and asked again."""
    looked = losses_of(ScriptedLink(*answers))
    with anyio.fail_after(20):
        await looked.certain_of_all()
    with anyio.move_on_after(0.05) as looking:
        await looked.watch()
    assert looking.cancelled_caught


@pytest.mark.usefixtures("hurried")
async def test_whoever_asks_about_one_who_is_lost_waits_until_the_watch_has_told_it() -> None:
    """So that nothing is done on the word of one who is not there, and the epoch ends first."""
    link = ScriptedLink(FINE)
    looked = losses_of(link)
    told: list[Any] = []

    async def watch() -> None:
        told.append(await looked.watch())
        group.cancel_scope.cancel()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await looked.certain_of_all()
            link.answers = [capabilities("other")]
            await looked.certain_of_all()
            told.append("went on")
    assert [list(found) for found in told] == [["agent.a0/w0"]]


@pytest.mark.usefixtures("hurried")
async def test_a_process_that_has_ended_is_lost_without_being_asked() -> None:
    """What its parent knows at once need not be found out by silence."""
    hanging = ScriptedLink(FINE)
    with anyio.fail_after(20):
        assert await losses_of(hanging, gone=lambda: {"agent.a0": "ended"}).watch() == {"agent.a0": "ended"}


def test_a_failure_of_silence_is_held_back_until_silence_is_told_from_a_loss() -> None:
    """One that was refused or answered is known to be of a loss, or not, much sooner."""
    silent: list[BaseException | str] = [TimeoutError("late"), NoAnswer("http://h", httpx.ConnectTimeout("All"))]
    for why in silent:
        assert losses.notice_s(ControlFailed({"a": "refused", "b": why})) > losses.SILENT_S + losses.ANSWER_S
    answered: list[BaseException | str] = [ParticipantError(Code.INVALID_PHASE, "x"), "two processes have this name"]
    for why in answered:
        assert losses.notice_s(ControlFailed({"a": why})) < losses.ANSWER_S


def test_a_server_whose_workers_are_lost_is_told_once() -> None:
    """With each reason once; a worker that is lost alone has its own name; of several hosts each server is told of."""
    lost = {"agent.main/w0": "it is silent", "model.main/w1": "it is new", "agent.main/w1": "it is silent"}
    assert by_server(lost) == {"agent.main": "it is silent", "model.main/w1": "it is new"}
    assert by_server({"a.b": "its process ended", "a.b/w0": "x"}) == {"a.b": "its process ended; x"}
    of_hosts = {"a.b/w0 on a": "x", "a.b/w2 on b": "x", "a.b/w3 on b": "y"}
    assert by_server(of_hosts) == {"a.b/w0 on a": "x", "a.b on b": "x; y"}

"""The controller is cut off from one host in each phase of a checkpoint and a restore, and they reach each other again.

With the store in a shared folder the host is c, which has the model and the resources, and the same controller goes on
once it is healed; on S3 the others are cut off, and the next claim goes on.
"""

import anyio
import pytest

from orchestrator.errors import (
    CommitFailed,
    ControlFailed,
    CoordinationError,
    PrepareFailed,
    RestoreFailed,
)
from orchestrator.rounds import RoundLimits
from store import open_checkpoint, verify_store
from store.reader import published
from tests.scenarios.controller import Controller
from tests.scenarios.matrix.cell import crash_after_a_checkpoint, end
from tests.scenarios.matrix.checks import problems
from tests.scenarios.matrix.phases import PHASES, Phase
from tests.scenarios.matrix.plot import MOVING, PATIENT, TASKS, TOOLS_BEFORE
from tests.support.waiting import until_asked

from .cutting import Cut
from .places import HostPlot

pytestmark = [pytest.mark.anyio, pytest.mark.fault(56), pytest.mark.timeout(300)]

LIMITS = RoundLimits(prepare_timeout_s=12, more_time_s=0, commit_timeout_s=12, publish_timeout_s=20, lease_s=15)
SLACK_S = 5.0
"""How much later than its lease's end a host may be seen open, on a busy machine."""
OUTCOMES: dict[str, tuple[type[CoordinationError] | None, type[CoordinationError] | None]] = {
    "idle": (PrepareFailed, PrepareFailed),
    "preparing": (PrepareFailed, CommitFailed),
    "prepared": (CommitFailed, CommitFailed),
    "committing": (CommitFailed, CommitFailed),
    "publishing": (None, None),
    "staging": (RestoreFailed, RestoreFailed),
    "activating": (RestoreFailed, ControlFailed),
    "restored": (ControlFailed, ControlFailed),
}
"""What the operation in which the host is cut off raises: of the host whose step is held there, and of another."""
PUBLISHED = {"publishing": 2, "staging": 2, "activating": 2, "restored": 2}
"""How many checkpoints there are by then: an older one, and the one that is restored or being published."""
OTHERS = {"idle": "a", "preparing": "a", "prepared": "b", "committing": "a"}
"""Who is cut off on S3: a has the environment; b, with the agent, where nothing is said."""
CASES = [
    pytest.param(store, phase, id=f"{store} {phase.name}".replace(" ", "-"), marks=mark)
    for store, mark in (("folder", pytest.mark.process), ("s3", pytest.mark.real))
    for phase in PHASES
]


@pytest.mark.parametrize(("plot", "phase"), CASES, indirect=["plot"])
async def test_56_a_host_cut_off_in_any_phase_loses_nothing(plot: HostPlot, phase: Phase) -> None:
    """The operation fails by name or is whole, all accept work within the lease, what is late is refused, all go on."""
    on_s3 = plot.s3 is not None
    cut = Cut(plot, OTHERS.get(phase.name, "b") if on_s3 else "c")
    plot.limits = LIMITS
    await plot.start()
    if phase.restores:
        await crash_after_a_checkpoint(plot)
    async with plot.controller(restore=False) as controller:
        cut.watch(controller)
        await _drive(plot, phase, controller, cut, OUTCOMES[phase.name][on_s3])
        await _cut_off(plot, phase, controller, cut)
        cut.heal()
        if not on_s3:
            if phase.restores:
                await _end_again(phase, controller, cut)
            await _go_on(plot, phase, controller, cut)
    if on_s3:
        async with plot.controller(adopts=True) as controller:
            await _go_on(plot, phase, controller, cut)
    await _check_store(plot)


async def _drive(
    plot: HostPlot, phase: Phase, controller: Controller, cut: Cut, outcome: type[CoordinationError] | None
) -> None:
    """To the phase, where the host is cut off, and to the operation's end, which names it and nobody else."""
    failure: CoordinationError | None = None
    try:
        await phase.drive(plot, controller, cut.make)
        if phase.name == "idle":
            await controller.checkpoint(limits=LIMITS)
    except CoordinationError as error:
        failure = error
    assert cut.at is not None, f"{phase.name} was never reached: {failure!r}"
    assert (failure and type(failure)) is outcome, failure
    if failure is not None:
        named = {name.partition("/")[0] for name in failure.failures}
        assert named
        assert named <= cut.roles, failure


async def _cut_off(plot: HostPlot, phase: Phase, controller: Controller, cut: Cut) -> None:
    """While it is cut off: there is no half checkpoint and no half restore, and everybody who was running runs."""
    assert len(published(await controller.store.chain())) == PUBLISHED.get(phase.name, 1)
    if phase.restores:
        found = await plot.looked_at()
        reached = {role: status for role, status in found.items() if role not in cut.roles}
        assert {status.phase for status in reached.values()} == {"idle"}
        assert not controller.restored
        return
    await _open_within_the_lease(plot, cut)
    await _moves_on(plot)


async def _moves_on(plot: HostPlot) -> None:
    """A rollout comes from its model to its next tool."""
    await plot.held(3)
    calls = next(calls for life, calls in plot.seen().made.items() if life.rollout_id == MOVING.rollout_id)
    assert plot.backend.control.release(call=calls[-1].number) == 1
    await plot.logged(TOOLS_BEFORE + 2)


async def _open_within_the_lease(plot: HostPlot, cut: Cut) -> None:
    assert cut.at is not None

    async def all_open() -> bool:
        return {status.phase for status in (await plot.looked_at()).values()} == {"idle"}

    await until_asked(all_open, max(0.1, cut.at + LIMITS.lease_s + SLACK_S - anyio.current_time()))


async def _go_on(plot: HostPlot, phase: Phase, controller: Controller, cut: Cut) -> None:
    """The next round succeeds, what comes late from before is refused, and every rollout ends once."""
    if phase.restores and not controller.restored:
        await controller.restore_head()
    else:
        await controller.checkpoint(limits=PATIENT)
    before = {name: (status.phase, status.counts) for name, status in (await plot.looked_at()).items()}
    said = await cut.send_late(controller)
    assert set(said.values()) <= {"stale_round", "stale_epoch", "invalid_phase"}, said
    assert before == {name: (status.phase, status.counts) for name, status in (await plot.looked_at()).items()}
    ending = await end(plot, controller)
    wrong = problems(TASKS, ending.results, plot.seen())
    assert not wrong, wrong


async def _end_again(phase: Phase, controller: Controller, cut: Cut) -> None:
    """A restore has no lease: the controller that goes on says once more how it ended to who has not heard it."""
    said = await cut.send_late(controller)
    ending = "Resume" if phase.name == "restored" else "Abort"
    assert said[ending] == "", said
    if phase.name == "restored":
        assert controller.claimed.head is not None
        scope = (await open_checkpoint(controller.store, controller.claimed.head)).manifest.scope
        controller.restored = {life.rollout_id: life for life in scope}


async def _check_store(plot: HostPlot) -> None:
    async with plot.open_store() as store:
        report = await verify_store(store, deep=True)
    assert report.sound, report

"""Two hosts of the fleet are cut off from each other, which the controller reaches both."""

import anyio
import pytest

from orchestrator.rounds import Round
from tests.scenarios.matrix.plot import LATER, PATIENT
from tests.support.waiting import until_asked

from .places import HostPlot

pytestmark = [pytest.mark.anyio, pytest.mark.fault(56), pytest.mark.timeout(300)]


@pytest.mark.process
async def test_56_a_tool_call_between_hosts_that_are_cut_off_is_named_and_goes_on(plot: HostPlot) -> None:
    """A prepare waits for it by name, and once they reach each other it is answered, saved, and never made twice."""
    await plot.start()
    plot.hold_tools(f"tool {LATER.amount(1)}")
    async with plot.controller() as controller:
        [life] = await controller.submit([LATER])
        await plot.logged(1)
        plot.network.cut("b", "c")
        plot.let_tools_go()
        taken = list[Round]()

        async def take() -> None:
            taken.append(await controller.checkpoint(limits=PATIENT))

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await until_asked(controller.waits_for)
            assert {(blocker.participant, blocker.life) for blocker in await controller.waits_for()} == {
                ("agent.main", life)
            }
            plot.network.heal()
        assert taken[0].published is not None
        await controller.deliver()
        assert plot.output[LATER.rollout_id].row is not None
    seen = plot.seen()
    assert seen.calls[life] == LATER.calls
    assert seen.tools[life] == LATER.tools

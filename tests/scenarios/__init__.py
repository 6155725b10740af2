"""The scenarios that must hold with real server processes: the suite, and how to write one.

Every server is a `midflight serve` in a process group of its own; the inference backend and its token store are
separate processes that survive. The test plays the controller, kills, restores, and asserts on the exact list of model
calls, tool calls and verifications, as the backend and the counter's own file have them.

    @counts                                         # variants.py: (W); `one`, `counts_and_s3` are the others
    async def test_01_a_call_in_flight_continues(stage: Stage) -> None:
        '''The call before it is not repeated.'''
        task = Task(0)                              # tasks.py: 4 model calls, 3 tool calls
        stage.hold(task, call=2)                    # at the backend, after_tokens=n for a cut
        async with stage.epoch() as before:         # fresh servers and a controller; leaving it kills everything
            [first] = await before.submit([task])
            await stage.held(1)
            await before.checkpoint()
        stage.release()
        async with stage.epoch() as after:          # claims the next epoch, adopts, restores the head
            [second] = await after.go_on([task])    # dispatches what was restored
            results = await after.deliver()         # waits, makes results durable, releases
        stage.seen().exactly(calls={first: [1, 2], second: [2, 3, 4]}, tools={...}, verified=[second])

What else there is:

    stage.start(), kill("agent.main"), restart(...), crash()     servers alone; `stage.servers[role].kill_worker(0)`
    async with stage.controller() as controller:                 a controller alone: leaving it kills no server
    async with stage.controller(adopts=True) as controller:      one that lets what goes on there go on
    old = await stage.supplant("agent.main")                     fresh servers beside old ones, which become zombies
    stage.model, agent, resources, counter, judge and others     settings of the servers; set them before the start
    stage.hold_tools("tool 1001", "verify"), let_tools_go()      tool calls and verifications wait once they are logged
    await stage.logged(2), logged(1, "verify")                   until the counter has begun so many
    controller.checkpoint(standing)                              awaits `standing(round)` while everything stands still
    controller.checkpoint_while(stage.let_tools_go)              acts once the prepare waits for a step
    controller.wait(life), deliver(life), release(life)          the result alone; with release; the release alone
    controller.retire, dispatch, run_at_agent, ask, statuses     one control operation, or data call, by hand
    await stage.wait(finished=3), held(1)                        events at the backend; nothing ever sleeps
    gates = gated(stage); gates.shut("commit"), reached, open    breaking.py: a counter held in the middle of a round
    acting(controller, Activate, before={name: act})             a message to a member does something first, or after
    await doom(stage, "entry")                                   a controller of its own that is killed at that point
    suspend(server), wake(server)                                SIGSTOP and SIGCONT of its workers
    who, taken = await blocked_checkpoint(controller, act)       looking.py: a checkpoint that must wait, and for whom
    exported(controller, taken), state_of(..., "agent")          what stands in its records

Most servers are forked by a process that has imported everything (tests/support/nursery.py), which runs the same
`main` with the same arguments and takes a fifth of the time; the variants `fewer` and `s3` start the installed script.

Random sequences (sequences.py says what can happen and what it leads to, player.py does it): `--seeds N` plays more of
them, and a seed that fails says how to play it again. Let a new operation there have its world first, then its act.

A test is `test_<number>_<claim>`; tests/scenarios/test_numbers.py checks that every number has one. Set no port and no
path; give each rollout a task of another number, or the witnesses cannot be read. Plant the bug that it is for, once.
"""

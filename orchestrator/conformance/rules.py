"""The rules, each with a name that stays, a sentence, what it needs, and the function that tries it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from . import rules_continuing as continuing
from . import rules_damage as damage
from . import rules_fencing as fencing
from . import rules_fresh as fresh
from . import rules_hooks as hooks
from . import rules_meeting as meeting
from .subject import Group, Subject
from .trials import Trial

Need = Literal["", "checkpoints", "own export", "own import", "stateless", "replay", "a new process"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `check` raises Violation where a group of cases breaks it."""

    name: str
    sentence: str
    need: Need
    check: Callable[[Trial, Group], Awaitable[None]]
    most: int = 4
    """Cases, or cohorts of them, that it is tried on unless the trial is thorough."""


RULES = (
    Rule(
        "cases-can-be-played",
        "Every case is seeded, its calls are answered and it is scored, and no hook fails.",
        "",
        continuing.can_be_played,
        most=24,
    ),
    Rule(
        "sessions-do-not-meet",
        "A session is answered the same alone, beside another one, and at the same time as another one.",
        "",
        meeting.sessions_do_not_meet,
    ),
    Rule(
        "concurrent-seeds-are-one",
        "Two seeds of one session at the same time open one session, and both are answered the same.",
        "",
        fencing.seeds_at_once,
        most=2,
    ),
    Rule(
        "retiring-leaves-nothing",
        "A rollout that is retired in the middle holds nothing, and its next attempt begins afresh.",
        "",
        fencing.retiring_frees,
        most=2,
    ),
    Rule(
        "closing-frees-everything",
        "A session that is over leaves nothing behind: no item of an attribute, no open file, no temporary file, "
        "no process.",
        "",
        fencing.closing_frees,
        most=2,
    ),
    Rule(
        "exports-can-be-written",
        "After every step the session can be exported, as JSON and bytes that come back exactly the same.",
        "checkpoints",
        continuing.can_be_exported,
    ),
    Rule(
        "exports-are-copies",
        "What export_session has given does not change with the session.",
        "own export",
        continuing.exports_are_copies,
    ),
    Rule(
        "a-checkpoint-changes-nothing",
        "A session is answered the same whether checkpoints are taken or not.",
        "checkpoints",
        continuing.checkpoints_change_nothing,
    ),
    Rule(
        "continued-equals-uninterrupted",
        "Restored from any boundary into a fresh instance, every later call and the score are answered as without the "
        "interruption.",
        "checkpoints",
        continuing.continues,
    ),
    Rule(
        "restored-three-times-over",
        "The same holds for a restore of a restore of a restore, each checkpointed twice.",
        "checkpoints",
        continuing.restores_thrice,
    ),
    Rule(
        "restored-in-another-process",
        "The same holds in a process that has only imported the class: nothing is kept in a class, a module or a file.",
        "a new process",
        fresh.restores_elsewhere,
        most=2,
    ),
    Rule(
        "restored-after-a-month",
        "The same holds there when the clocks of the module time are 30 days ahead.",
        "a new process",
        fresh.restores_later,
        most=2,
    ),
    Rule(
        "time-down-does-not-count",
        "A session that is parked or down for ten times session_ttl_s does not expire by that.",
        "checkpoints",
        continuing.time_down_does_not_count,
        most=2,
    ),
    Rule(
        "stale-attempts-change-nothing",
        "Calls of attempt N are refused once attempt N + 1 is there, and change nothing of it.",
        "checkpoints",
        fencing.stale_attempts_change_nothing,
        most=2,
    ),
    Rule(
        "seeding-twice-is-seeding-once",
        "A seed that is repeated returns the session as it is, also after a restore.",
        "checkpoints",
        fencing.seeding_twice,
        most=2,
    ),
    Rule(
        "closed-stays-closed",
        "A closed session, also one that was closed before its seed, refuses every call and cannot be seeded again.",
        "checkpoints",
        fencing.closed_stays_closed,
        most=2,
    ),
    Rule(
        "damaged-records-activate-nothing",
        "A restore from a record that is damaged fails; no session is active after it, and other rollouts go on.",
        "checkpoints",
        damage.damaged_records,
        most=2,
    ),
    Rule(
        "bad-states-are-refused",
        "import_session raises for a state that it did not export, or takes it exactly as it is and can go on with it.",
        "own import",
        damage.bad_states,
        most=2,
    ),
    Rule(
        "a-checkpoint-waits-for-a-call",
        "A checkpoint in the middle of a tool, or of a verify of mode wait, waits or is refused.",
        "checkpoints",
        hooks.checkpoints_wait,
        most=2,
    ),
    Rule(
        "a-cancelled-call-changes-nothing",
        "A call that is cancelled at any await leaves the session as it was, or lost where its state is no JSON.",
        "checkpoints",
        hooks.cancelled_calls,
        most=2,
    ),
    Rule(
        "a-refused-call-changes-nothing",
        "A tool that says no or fails leaves the session as it was, or lost where it failed and the state is no JSON.",
        "checkpoints",
        hooks.refused_calls,
        most=2,
    ),
    Rule(
        "stateless-keeps-nothing",
        "A server that declares stateless answers each call alone as after all those before it.",
        "stateless",
        hooks.stateless_keeps_nothing,
    ),
    Rule(
        "a-replayed-verify-changes-nothing",
        "A verify that declares replay gives the same a second time, and the session is as before.",
        "replay",
        hooks.replayed_verify,
    ),
)
BY_NAME = {rule.name: rule for rule in RULES}


def why_not(rule: Rule, subject: Subject) -> str:
    """Why a rule does not apply to a server; empty where it does."""
    if not rule.need:
        return ""
    if not subject.checkpoints:
        return "the class declares no checkpoint_mode: its rollouts start over after a crash"
    reasons = {
        "own export": (subject.exports_itself, "the class writes no export_session"),
        "own import": (subject.imports_itself, "the class writes no import_session"),
        "stateless": (subject.server.checkpoint_mode == "stateless", "the class does not declare stateless"),
        "replay": (subject.server.checkpoint_verify == "replay", "the class does not declare replay"),
        "a new process": (bool(subject.target), "another process cannot import the class by its name"),
    }
    applies, reason = reasons.get(rule.need, (True, ""))
    return "" if applies else reason

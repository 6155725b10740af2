"""Every name that telemetry has: one table, which docs/telemetry.md shows and tests hold the code to.

No label ever has the name of a rollout, a life, a tool, a URL or a path: each has few values, and they are declared
here. What is unbounded stands in the attributes of spans alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from store.layout import NAME_RULE

from ..cuts import Reason
from ..errors import Code
from ..wire import OPERATIONS, Blocker, RoundCall

Shape = Literal["span", "counter", "histogram", "gauge"]

CONTROLLER = "controller"
"""The participant's place in labels, where it is the controller that acts."""
PARTICIPANT = re.compile(rf"controller|(environment|model|agent|resources)\.{NAME_RULE}")
"""Values of the label `participant`: `<kind>.<name>`, as many as the run has roles."""

# Spans of the controller

CLAIM = "midflight.claim"
ADOPT = "midflight.adopt"
CHECKPOINT = "midflight.checkpoint"
PREPARE = "midflight.prepare"
PREPARE_KIND = "midflight.prepare.kind"
COMMIT = "midflight.commit"
RENEW = "midflight.renew"
RESUME = "midflight.resume"
PUBLISH = "midflight.publish"
PUBLISH_MANIFEST = "midflight.publish.manifest"
PUBLISH_CHAIN = "midflight.publish.chain"
PUBLISH_STAGES = {"manifest": PUBLISH_MANIFEST, "chain": PUBLISH_CHAIN}
"""The stages of a publication, as the store calls them."""
ABORT = "midflight.abort"
RESTORE = "midflight.restore"
RESTORE_STAGE = "midflight.restore.stage"
RESTORE_ACTIVATE = "midflight.restore.activate"
RETIRE = "midflight.retire"
CALL = "midflight.call"
COLLECT_BEGIN = "midflight.collect.begin"
COLLECT_CHECKPOINT = "midflight.collect.checkpoint"

# Spans of participants

OPERATION = "midflight.participant."
"""Before the name of each operation."""
FREEZE = "midflight.participant.commit.freeze"
EXPORT = "midflight.participant.commit.export"
PARK = "midflight.participant.prepare.park"
PIN = "midflight.participant.commit.pin"
WRITE_PARTS = "midflight.participant.commit.parts"
WRITE_MANIFEST = "midflight.participant.commit.manifest"
WRITE_STAGES = {"parts": WRITE_PARTS, "manifest": WRITE_MANIFEST}
"""The stages of a commit, as the store calls them."""
OPEN = "midflight.participant.stage.open"
VERIFY = "midflight.participant.stage.verify"
READ = "midflight.participant.stage.read"
IMPORT = "midflight.participant.stage.import"

# Metrics

CONTROLLER_DURATION = "midflight.controller.duration"
PARTICIPANT_DURATION = "midflight.participant.duration"
CHECKPOINT_HOLD = "midflight.checkpoint.hold"
PARTICIPANT_HOLD = "midflight.participant.hold"
BARRIER_WAIT = "midflight.barrier.wait"
RECORDS = "midflight.records"
SIZE = "midflight.size"
STORE_REQUESTS = "midflight.store.requests"
BLOCKERS = "midflight.blockers"
LEASE_EXPIRIES = "midflight.lease.expiries"
RESTARTS = "midflight.restarts"
RETIRED = "midflight.retired"
NOT_STOPPED = "midflight.not_stopped"
REFUSED = "midflight.refused"
HELD = "midflight.model.held"
CUTS = "midflight.model.cuts"
CUT_TOKENS = "midflight.model.cut.tokens"
TOKENS_CONTINUED = "midflight.model.tokens.continued"
TOKENS_REGENERATED = "midflight.model.tokens.regenerated"
ROLLOUTS = "midflight.rollouts"
GATE_CLOSED = "midflight.gate.closed"
GATE_PARKED = "midflight.gate.parked"
GATE_WAITED_FOR = "midflight.gate.waited_for"
CHECKPOINT_AGE = "midflight.checkpoint.age"
TOKENS_AT_RISK = "midflight.tokens.at_risk"
CHECKPOINTS_BLOCKED = "midflight.checkpoint.blocked"
HEAD_EPOCH = "midflight.head.epoch"
HEAD_ROUND = "midflight.head.round"
SERVER_WORKERS = "midflight.server.workers"
SERVER_WORKERS_MISSING = "midflight.server.workers_missing"

# The values of labels

OUTCOMES = frozenset({"ok", "blocked", "failed", "cancelled"})
CONTROLLER_OPERATIONS = frozenset(
    {"claim", "adopt", "checkpoint", "prepare", "commit", "renew", "resume", "publish", "abort", "restore", "retire"}
)
STALE = frozenset(
    {
        Code.STALE_EPOCH,
        Code.STALE_ROUND,
        Code.STALE_LIFE,
        Code.STALE_CALL,
        Code.LOST_SESSION,
        Code.WRONG_INCARNATION,
        Code.LEASE_EXPIRED,
    }
)
"""Codes of refusals of what is over, wherever it came from."""
_STEPS = {
    "seed": "seed",
    "seed_session": "seed",
    "open": "open",
    "activate": "activate",
    "verify": "verify",
    "close": "close",
    "close_session": "close",
    "export": "export",
}
UNLISTED = "unlisted"
"""The reason of blockers past the few that a participant lists."""
BLOCKED_BY = frozenset({*_STEPS.values(), "tool", "other", UNLISTED})
ANEW = frozenset(Reason) - {Reason.NOTHING_GENERATED}
WAYS = frozenset({"written", "restored"})
VERBS = frozenset({"create", "put", "get", "get_range", "stat", "list", "delete"})
ENDS = frozenset({"delivered", "failed", "continued", "restarted"})


def reason_of(blocker: Blocker) -> str:
    """Why a blocker is waited for, as one of few words: the names of tools are not among them."""
    if blocker.step.startswith("tool:"):
        return "tool"
    known = _STEPS.get(blocker.step)
    return known or ("tool" if blocker.participant.startswith("resources.") else "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One thing that is measured."""

    name: str
    """Dotted, and stable: it changes with a major version only."""
    shape: Shape
    unit: str = "1"
    """As UCUM writes it: `s`, `By`, or `{things}` for counts."""
    labels: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    """Each label with all values that it can have; None for `participant`, whose values match PARTICIPANT."""
    attributes: tuple[str, ...] = ()
    """Of a span, all that it may have."""
    means: str
    """One sentence."""

    @property
    def prometheus(self) -> str:
        """The name that Prometheus has for it; nothing for a span."""
        if self.shape == "span":
            return ""
        ending = {"s": "_seconds", "By": "_bytes"}.get(self.unit, "")
        return self.name.replace(".", "_") + ending + ("_total" if self.shape == "counter" else "")


def _span(name: str, means: str, *attributes: str) -> Instrument:
    return Instrument(name=name, shape="span", unit="s", attributes=attributes, means=means)


_MEMBER = ("participant", "process")
_OWN: Mapping[str, tuple[str, ...]] = {
    "prepare": ("prepared", "blockers", "restarts"),
    "commit": ("lives", "records", "bytes"),
    "retire": ("lives", "not_stopped"),
    "submit": ("lives", "refused"),
    "release": ("lives",),
    "stage": ("lives",),
    "adopt": ("lives",),
    "work": ("lives",),
}

SPANS: tuple[Instrument, ...] = (
    _span(COLLECT_BEGIN, "A collection run finds where it stands: seals, adopts, restores and resumes.", "epoch"),
    _span(COLLECT_CHECKPOINT, "A collection run takes a checkpoint, and prunes."),
    _span(CLAIM, "A controller claims a new epoch on the chain.", "epoch"),
    _span(ADOPT, "The epoch is made known everywhere.", "epoch", "members"),
    _span(
        CHECKPOINT,
        "One checkpoint, from its prepare until it is published; the controller's own save is in it.",
        "round",
        "rollouts",
        "restarts",
        "dropped",
        "records",
        "bytes",
        "held_s",
        "blockers",
    ),
    _span(PREPARE, "Admission closes and work parks, kind after kind.", "round", "prepared", "blockers", "restarts"),
    _span(PREPARE_KIND, "The participants of one kind park.", "kind", "members", "blockers", "restarts"),
    _span(COMMIT, "All participants write their records.", "round", "rollouts", "records", "bytes"),
    _span(RENEW, "All leases are extended: the proof that all stood still together.", "round"),
    _span(RESUME, "Admission reopens, kind after kind.", "round"),
    _span(PUBLISH, "The checkpoint is made to exist.", "round", "rollouts", "participants"),
    _span(PUBLISH_MANIFEST, "What participants wrote is read back, and the aggregate manifest written."),
    _span(PUBLISH_CHAIN, "The entry is put on the chain: from here on the checkpoint exists."),
    _span(ABORT, "The round is ended everywhere, and its work cancelled.", "round"),
    _span(RESTORE, "A checkpoint is restored at all participants, or at none.", "round", "checkpoint", "rollouts"),
    _span(RESTORE_STAGE, "All participants read and check their shares; nothing is active."),
    _span(RESTORE_ACTIVATE, "All participants install what they have staged."),
    _span(RETIRE, "Lives are stopped and freed everywhere.", "lives", "not_stopped"),
    _span(CALL, "The controller asks one participant process, and waits for its answer.", "operation", *_MEMBER),
    *(
        _span(
            f"{OPERATION}{name}",
            f"At one process: {(message.__doc__ or '').strip().splitlines()[0]}",
            *_MEMBER,
            *(("round",) if issubclass(message, RoundCall) else ()),
            *_OWN.get(name, ()),
        )
        for name, (message, _) in OPERATIONS.items()
    ),
    _span(PARK, "Steps in flight end, and what has to be exported beforehand is.", *_MEMBER),
    _span(FREEZE, "What the scope has changed since it parked is made ready once more.", *_MEMBER),
    _span(EXPORT, "The scope is gathered and summed up; its records are made while they are written.", *_MEMBER),
    _span(PIN, "A worker's own token store keeps what this checkpoint needs.", *_MEMBER),
    _span(WRITE_PARTS, "Records are made, compressed and written as parts, and the blobs.", *_MEMBER),
    _span(WRITE_MANIFEST, "The participant manifest is written.", *_MEMBER),
    _span(OPEN, "The manifests and indexes of the checkpoint are read and checked.", *_MEMBER),
    _span(VERIFY, "This process checks every digest of its share.", *_MEMBER, "shares", "bytes"),
    _span(READ, "The scope's records are read, and imported where a kind has to.", *_MEMBER, "records"),
    _span(IMPORT, "A kind imports records before anything is active, as resources servers do.", "participant"),
)


def _metric(name: str, shape: Shape, unit: str, means: str, **labels: frozenset[str] | None) -> Instrument:
    return Instrument(name=name, shape=shape, unit=unit, labels=labels, means=means)


METRICS: tuple[Instrument, ...] = (
    _metric(
        CONTROLLER_DURATION,
        "histogram",
        "s",
        "How long each operation of the controller took; `blocked` is a prepare that its deadline ended.",
        operation=CONTROLLER_OPERATIONS,
        outcome=OUTCOMES,
    ),
    _metric(
        PARTICIPANT_DURATION,
        "histogram",
        "s",
        "How long each operation took at one participant process.",
        participant=None,
        operation=frozenset(OPERATIONS),
        outcome=OUTCOMES,
    ),
    _metric(
        CHECKPOINT_HOLD,
        "histogram",
        "s",
        "The exclusive hold: from the first prepare of a checkpoint until the resume, or where it failed the abort, "
        "was answered everywhere.",
    ),
    _metric(
        PARTICIPANT_HOLD,
        "histogram",
        "s",
        "For how long one process kept its admission closed in a round.",
        participant=None,
    ),
    _metric(
        BARRIER_WAIT,
        "histogram",
        "s",
        "From closing admission until everything in one process was parked and made ready.",
        participant=None,
    ),
    _metric(RECORDS, "counter", "{record}", "Records that commits wrote and stages read.", participant=None, way=WAYS),
    _metric(
        SIZE,
        "counter",
        "By",
        "Compressed bytes of records and blobs that commits wrote, and of parts that stages read.",
        participant=None,
        way=WAYS,
    ),
    _metric(
        STORE_REQUESTS,
        "counter",
        "{request}",
        "Requests to the store that participants made in control operations.",
        participant=None,
        verb=VERBS,
    ),
    _metric(
        BLOCKERS,
        "counter",
        "{blocker}",
        "What prepares were still waiting for when their time was over, by the step in flight; what a participant does "
        "not list is `unlisted`.",
        participant=None,
        reason=BLOCKED_BY,
    ),
    _metric(
        LEASE_EXPIRIES,
        "counter",
        "{lease}",
        "Leases that ran out: the participant reopened by itself, and the round is lost.",
        participant=None,
    ),
    _metric(
        RESTARTS,
        "counter",
        "{life}",
        "Lives that a participant could not capture, counted at every prepare that named them.",
        participant=None,
    ),
    _metric(RETIRED, "counter", "{life}", "Lives that a participant was told to retire.", participant=None),
    _metric(
        NOT_STOPPED,
        "counter",
        "{life}",
        "Of the retired lives those whose work did not stop in time; they are fenced.",
        participant=None,
    ),
    _metric(
        REFUSED,
        "counter",
        "{request}",
        "Control and data requests that were refused because what they belong to is over.",
        participant=None,
        code=frozenset(code.value for code in STALE),
    ),
    _metric(
        HELD,
        "counter",
        "{response}",
        "Model responses that were finished while admission was closed, and held until it opened.",
        participant=None,
    ),
    _metric(
        CUTS,
        "counter",
        "{generation}",
        "Unfinished generations whose exact prefix a commit has exported.",
        participant=None,
    ),
    _metric(CUT_TOKENS, "counter", "{token}", "Tokens in those prefixes: kept by the cut.", participant=None),
    _metric(
        TOKENS_CONTINUED,
        "counter",
        "{token}",
        "Tokens of prefixes that a later call has taken over, and that were not generated again.",
        participant=None,
    ),
    _metric(
        TOKENS_REGENERATED,
        "counter",
        "{token}",
        "Tokens of prefixes that were generated anew, by the reason.",
        participant=None,
        reason=frozenset(reason.value for reason in ANEW),
    ),
    _metric(
        ROLLOUTS,
        "counter",
        "{rollout}",
        "What became of rollouts in a collection run: rows and failures written, continued from a checkpoint, "
        "started over.",
        end=ENDS,
    ),
    _metric(GATE_CLOSED, "gauge", "{process}", "How many processes keep their admission closed now.", participant=None),
    _metric(GATE_PARKED, "gauge", "{step}", "Calls and steps that are parked now.", participant=None),
    _metric(
        GATE_WAITED_FOR,
        "gauge",
        "{step}",
        "Steps in flight now that a prepare would wait for.",
        participant=None,
    ),
    _metric(
        CHECKPOINT_AGE,
        "gauge",
        "s",
        "Since the last checkpoint that this controller published; before its first, since it began.",
    ),
    _metric(
        TOKENS_AT_RISK,
        "gauge",
        "{token}",
        "Generated tokens behind the boundaries of undelivered rollouts that no checkpoint has, as of the last time "
        "that the run asked its participants.",
    ),
    _metric(CHECKPOINTS_BLOCKED, "gauge", "{checkpoint}", "Checkpoints in a row that blockers have prevented."),
    _metric(HEAD_EPOCH, "gauge", "1", "The epoch of the head, the checkpoint that a restore would take; 0 for none."),
    _metric(HEAD_ROUND, "gauge", "1", "The k of the head: it is checkpoint `<epoch>.<k>`; 0 for none."),
    _metric(SERVER_WORKERS, "gauge", "{process}", "Of a server's page for Prometheus: how many workers it has."),
    _metric(
        SERVER_WORKERS_MISSING,
        "gauge",
        "{process}",
        "Of a server's page for Prometheus: how many workers did not answer in time, and so are not on it.",
    ),
)

TABLE: tuple[Instrument, ...] = (*SPANS, *METRICS)
BY_NAME: Mapping[str, Instrument] = {one.name: one for one in TABLE}

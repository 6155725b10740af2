"""Invariants of checkpoints, restores and the store: 2, 5, 6, 7, 8 and 10, each as a function over the history."""

from collections.abc import Iterator, Mapping

from .findings import Violation
from .history import Event
from .scenario import Scenario
from .view import Life, View, life_of, owner

SLACK_S = 0.2
"""For what takes no time but a few messages in the process itself."""
GRACE_S = 5.0
CALL_S = 30.0
COMMIT_S = 8.0
RESTORE_S = 600.0


def published_restores(view: View) -> Iterator[Violation]:
    """2: what the chain names is what stands in the store, whole, and can be read at the end."""
    for made in view.published.values():
        if made.problem:
            yield Violation(2, f"{made.id} was published, and {made.problem}", made.n)
            continue
        held = {rollout for records in made.records.values() for rollout in records}
        missing = {life_of(text).rollout for text in made.manifest["scope"]} - held
        yield from (Violation(2, f"{rollout} is in the scope of {made.id}, and has no record") for rollout in missing)
    for event in view.history.of("audited"):
        if event["damage"]:
            yield Violation(2, f"{event['checkpoint']} cannot be read: {event['damage']}", event.n)
    if not any(name.startswith("store: cut") for name in view.history.reached):
        for event in view.history.of("control"):
            if event["code"] == "corrupt_checkpoint":
                yield Violation(2, f"{event['operation']} at {event['process']} found damage: {event['why']}", event.n)
        for event in view.history.of("ended"):
            if event["how"].startswith("Corrupt"):
                yield Violation(2, f"{event['process']} ended: {event['how']}", event.n)


def older_checkpoints_stand(view: View) -> Iterator[Violation]:
    """5 and 8: no object that a checkpoint needs is overwritten or deleted before a plan names the checkpoint."""
    needed: dict[str, list[str]] = {}
    for made in view.published.values():
        for key in made.needs:
            needed.setdefault(key, []).append(made.id)
    for event in view.history.of("object"):
        if event["space"] != "store":
            continue
        for name in needed.get(event["key"], ()):
            made = view.published[name]
            if event.n <= made.n or view.planned.get(name, event.n) < event.n:
                continue
            if event["verb"] == "delete":
                yield Violation(8, f"{event['key']} is deleted, and {name} needs it", event.n)
            elif event["digest"] != made.needs[event["key"]]:
                yield Violation(5, f"{event['key']} is overwritten, and {name} needs it", event.n)


def heads_are_kept(view: View) -> Iterator[Violation]:
    """8: a plan never names the head, nor what a running round may still publish."""
    head, epoch = None, 0
    for event, document in view.chain:
        action = document["action"]
        if action["kind"] == "deletion":
            for checkpoint in action["checkpoints"]:
                if checkpoint == head:
                    yield Violation(8, f"a plan names the head {head}", event.n)
                if checkpoint not in view.published and _number(checkpoint) > max((epoch, 0), _number(head or "0.0")):
                    yield Violation(8, f"a plan names {checkpoint}, which may still be published", event.n)
        head = document["state"]["head"] and document["state"]["head"]["checkpoint"]
        epoch = document["state"]["epoch"]


def _number(checkpoint: str) -> tuple[int, int]:
    epoch, _, k = checkpoint.partition(".")
    return int(epoch), int(k)


def epochs_rise(view: View) -> Iterator[Violation]:
    """5: the chain is one sequence, its epochs never fall, and a publication is of the highest."""
    highest = 0
    for place, (event, document) in enumerate(view.chain, 1):
        if document["n"] != place:
            yield Violation(5, f"entry {document['n']} is the {place}th", event.n)
        kind, epoch = document["action"]["kind"], document["epoch"]
        if kind == "claim" and epoch <= highest:
            yield Violation(5, f"entry {place} claims epoch {epoch}, and {highest} was claimed before", event.n)
        if kind in ("publication", "seal") and epoch != highest:
            yield Violation(5, f"entry {place} is of epoch {epoch}, and {highest} stands", event.n)
        highest = max(highest, epoch)


def admission_reopens(view: View, scenario: Scenario) -> Iterator[Violation]:
    """6: a gate that closes is open again when the lease that was given last has run out."""
    ends = view.events[-1].at
    closed: dict[int, tuple[Event, float]] = {}
    gone: dict[int, float] = {}
    for event in view.history.of("gate", "control", "crashed", "ended"):
        where = event["incarnation"]
        if event.what in ("crashed", "ended"):
            gone[where] = event.at
            closed.pop(where, None)
        elif event.what == "gate" and event["closed"]:
            closed.setdefault(where, (event, event.at + scenario.lease_s))
        elif event.what == "gate" and where in closed:
            began, until = closed.pop(where)
            yield from _late(view, began, until, event.at)
        elif event["operation"] in ("prepare", "renew") and event["code"] == "ok" and where in closed:
            began, _ = closed[where]
            closed[where] = began, event.at + event["lease_s"]
    for began, until in closed.values():
        yield from _late(view, began, until, ends)


def _late(view: View, began: Event, until: float, at: float) -> Iterator[Violation]:
    limit = until + SLACK_S + 0.02 * (until - began.at) + view.hung_s(began["process"])
    if at > limit:
        yield Violation(6, f"{began['process']} was closed for {at - began.at:.2f} s, and its lease was over "
                           f"{at - until:.2f} s before", began.n)  # fmt: skip


def all_or_nothing(view: View, scenario: Scenario) -> Iterator[Violation]:
    """7: whoever opens a restore has all of its share, and everybody has activated theirs before."""
    activated: dict[str, set[str]] = {}
    stages: dict[str, Event] = {}
    everybody = {f"{role}-{k}" for role, count in scenario.workers.items() for k in range(count)}
    for event in view.history.of("control", "settled"):
        if event.what == "settled":
            if missing := everybody - activated.get(event["round"], set()):
                text = f"{event['process']} opens restore {event['round']}, and {sorted(missing)} has not activated"
                yield Violation(7, text, event.n)
            yield from _share(view, scenario, event, stages[event["round"]])
        elif event["code"] == "ok" and event["operation"] == "activate":
            activated.setdefault(event["round"], set()).add(event["process"])
        elif event["code"] == "ok" and event["operation"] == "stage":
            stages[event["round"]] = event


def _share(view: View, scenario: Scenario, event: Event, stage: Event) -> Iterator[Violation]:
    made = view.published.get(event["checkpoint"])
    if made is None:
        yield Violation(7, f"{event['process']} restored {event['checkpoint']}, which was never published", event.n)
        return
    worker, role = int(event["process"].rpartition("-")[2]), event["role"]
    scope = {life_of(text).rollout for text in stage["scope"]}
    wanted = {
        text_of(life)
        for rollout, (life, _) in made.records.get(role, {}).items()
        if rollout in scope and owner(rollout, scenario.workers[role]) == worker
    }
    if wanted != set(event["lives"]):
        text = (
            f"{event['process']} has restored {sorted(event['lives'])} of {made.id}, and its share is {sorted(wanted)}"
        )
        yield Violation(7, text, event.n)


def all_stood_still(view: View, scenario: Scenario) -> Iterator[Violation]:
    """2: what is published is of one point in time: nobody changed anything, or reopened, while others still wrote."""
    effects = {"seed", "increment_counter", "get_counter_value", *(("verify",) if scenario.verify == "wait" else ())}
    last: dict[str, int] = {}
    for event in _first_commits(view):
        last[event["round"]] = event.n
    standing: dict[str, str] = {}
    for event in view.history.of("control", "did", "gate", "crashed"):
        process = event["process"]
        if event.what == "control" and event["operation"] == "prepare" and event["prepared"]:
            standing[process] = event["round"]
        if event.what == "crashed":
            standing.pop(process, None)
        round_ = standing.get(process)
        if event.what in ("control", "crashed") or round_ not in view.published or scenario.verify == "restart":
            continue
        if event.what == "did" and event["effect"] in effects:
            yield Violation(2, f"{event['effect']} at {process} while round {round_} stood still", event.n)
        if event.what == "gate" and not event["closed"]:
            if event.n < last.get(round_, 0):
                yield Violation(2, f"{process} reopened while others wrote {round_}, which is published", event.n)
            del standing[process]


def _first_commits(view: View) -> Iterator[Event]:
    """The first time that each process answers each commit: a repeat tells nothing new."""
    seen: set[tuple[str, str]] = set()
    for event in view.history.of("control"):
        key = event["round"], event["process"]
        if event["operation"] == "commit" and event["code"] == "ok" and key not in seen:
            seen.add(key)
            yield event


def epochs_are_obeyed(view: View) -> Iterator[Violation]:
    """1: who knows an epoch does nothing for a controller of a lower one."""
    known: dict[int, int] = {}
    for event in view.history.of("control"):
        where, epoch = event["incarnation"], event["epoch"]
        if event["code"] == "ok" and epoch < known.get(where, 0) and event["operation"] != "adopt":
            text = f"{event['operation']} of epoch {epoch} at {event['process']}, which knows {known[where]}"
            yield Violation(1, text, event.n)
        if event["operation"] == "adopt" and event["code"] == "ok":
            known[where] = max(known.get(where, 0), epoch)


def text_of(life: Life) -> str:
    """A life as it is written."""
    return f"{life.rollout}/{life.epoch}.{life.attempt}#{life.n}"


LIMITS_S: Mapping[str, float] = {"commit": COMMIT_S, "renew": CALL_S, "resume": CALL_S, "abort": CALL_S,
                                 "adopt": CALL_S, "stage": RESTORE_S, "activate": RESTORE_S}  # fmt: skip


def deadlines_hold(view: View) -> Iterator[Violation]:
    """10: no control call is waited for longer than its limit, whatever its participant does."""
    waiting: dict[tuple[int, int], Event] = {}
    for event in view.history.of("sent", "heard", "crashed", "ended"):
        if event.what == "sent":
            waiting[event["incarnation"], event["number"]] = event
        elif event.what == "heard":
            began = waiting.pop((event["incarnation"], event["number"]))
            yield from _overdue(view, began, event.at)
        else:
            waiting = {key: began for key, began in waiting.items() if key[0] != event["incarnation"]}
    for began in waiting.values():
        yield from _overdue(view, began, view.events[-1].at)


def _overdue(view: View, began: Event, at: float) -> Iterator[Violation]:
    operation = began["operation"]
    limit = began["timeout_s"] + GRACE_S if operation in ("prepare", "retire") else LIMITS_S.get(operation)
    if limit is not None and at - began.at > limit + SLACK_S + view.hung_s(began["process"]):
        text = f"{operation} at {began['member']} was waited for {at - began.at:.1f} s, and its limit is {limit:g}"
        yield Violation(10, text, began.n)

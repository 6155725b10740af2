"""Invariants of lives, rows and lineages: 1, 3, 4, 9, 11 and 12, each as a function over the history."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from .findings import Violation
from .history import Event
from .view import Life, Published, View, call_of, life_of

KEPT = ("lives", "restored", "parked", "kept_replies", "stopping", "sessions", "in_flight", "held", "cut", "anew")
"""What no state holder has when everything is delivered."""


def only_the_newest_life(view: View) -> Iterator[Violation]:
    """1: a holder that has served a newer life, or was told of the end of this one, lets it change nothing."""
    newest: dict[tuple[int, str], Life] = {}
    ended: dict[tuple[int, str], Life] = {}
    under_way: set[tuple[int, str, str]] = set()
    """Calls that came before the end: what is generated for one until it hears of the end changes nothing here."""
    for event in view.history.of("asked", "did", "answered", "control"):
        where = event["incarnation"]
        if event.what == "control":
            if event["code"] == "ok" and event["operation"] in ("retire", "release"):
                for text in event["lives"]:
                    life = life_of(text)
                    if text not in (event["not_stopped"] or ()):
                        _raise(ended, (where, life.rollout), life)
            continue
        if event["life"] is None or (event.what == "answered" and event["code"] != "ok"):
            continue
        life = life_of(event["life"])
        key, call = (where, life.rollout), (where, event["life"], event["call"])
        if event.what == "asked":
            if key not in ended or ended[key].position < life.position:
                under_way.add(call)
            continue
        for known, why in ((newest, "has served"), (ended, "was told of the end of")):
            other = known.get(key)
            if known is ended and event["effect"] == "generate" and call in under_way:
                continue
            if event.what == "did" and other and (life.position < other.position or (known is ended and life == other)):
                yield Violation(1, f"{event['process']} {why} {_text(other)}, and {event['effect']} by {_text(life)}",
                                event.n)  # fmt: skip
        if event["route"] != "/acknowledge":
            _raise(newest, key, life)


def _raise(known: dict[tuple[int, str], Life], key: tuple[int, str], life: Life) -> None:
    if key not in known or known[key].position < life.position:
        known[key] = life


def delivered_once(view: View) -> Iterator[Violation]:
    """3: one final line a rollout, no life of it after that, and one row of it in the output."""
    finals = Counter(line.rollout for line in view.lines if line.final)
    yield from (Violation(3, f"{rollout} has {n} final lines") for rollout, n in finals.items() if n > 1)
    for event, life in view.dispatched:
        line = view.delivered.get(life.rollout)
        if line is not None and line.n < event.n and line.life != life and not event["ghost"]:
            yield Violation(3, f"{_text(life)} was dispatched after {_text(line.life)} was delivered", event.n)
    for event in view.history.of("settled"):
        for life in map(life_of, event["lives"]):
            line = view.delivered.get(life.rollout)
            if line is not None and line.n < event.n and line.epoch < int(event["round"].partition(".")[0]):
                yield Violation(3, f"{_text(life)} was restored after {_text(line.life)} was delivered", event.n)


def none_vanishes(view: View) -> Iterator[Violation]:
    """4: what was dispatched stands in one set of each checkpoint; its output is no longer than what is durable."""
    for made in view.published.values():
        if not made.manifest:
            continue
        sets = [*made.manifest["scope"], *made.manifest["restarts"], *(d["life"] for d in made.manifest["dropped"])]
        twice = [text for text, times in Counter(life_of(text).rollout for text in sets).items() if times > 1]
        yield from (Violation(4, f"{rollout} is in two sets of {made.id}", made.n) for rollout in twice)
        yield from _left_out(view, made, set(sets))
        yield from _ahead(view, made)


def _began(view: View, made: Published) -> int:
    """The event at which its round began to commit: nothing is exported before."""
    return next(e.n for e in view.history.of("sent") if e["round"] == made.id and e["operation"] == "commit")


def _left_out(view: View, made: Published, sets: set[str]) -> Iterator[Violation]:
    began = _began(view, made)
    newest: dict[str, Life] = {}
    for event, life in view.dispatched:
        if event.n < began and life.epoch == made.epoch:
            _raise_rollout(newest, life)
    closed = {line.life for line in view.lines if line.n < made.n}
    ended = {
        life_of(text)
        for e in view.history.of("control")
        if e["operation"] in ("retire", "release") and e.n < began
        for text in e["lives"]
    }
    for life in newest.values():
        line = view.delivered.get(life.rollout)
        if _text(life) not in sets and life not in closed | ended and not (line and line.n < made.n):
            yield Violation(4, f"{_text(life)} is dispatched, undelivered, and in no set of {made.id}", made.n)


def _raise_rollout(newest: dict[str, Life], life: Life) -> None:
    if life.rollout not in newest or newest[life.rollout].position < life.position:
        newest[life.rollout] = life


def _ahead(view: View, made: Published) -> Iterator[Violation]:
    for segment in made.manifest["output"]:
        chunks = [e for e in view.history.of("object") if e["space"] == "output" and e.n < made.n]
        durable = sum(
            len(view.history.objects[e["digest"]])
            for e in chunks
            if e["verb"] == "create" and e["key"].split("/")[1] == segment["name"]
        )
        if segment["length"] > durable:
            text = f"{made.id} counts {segment['length']} bytes of segment {segment['name']}, and {durable} are durable"
            yield Violation(4, text, made.n)


def lineages(view: View, rows: list[dict[str, Any]]) -> Iterator[Violation]:
    """9: each token of a row is of its life, or of one that it continues, from before the boundary."""
    generated = {event["tag"]: event for event, _ in view.effects if event["effect"] == "generate"}
    for row in rows:
        life = life_of(row["_midflight_life"])
        until = ancestry(view, life)
        for item in row["response"]["output"]:
            tag = item.get("id")
            if tag is None:
                continue
            maker, event = life_of(tag.partition("|")[0]), generated.get(tag)
            if event is None:
                yield Violation(9, f"{tag} is in the lineage of {_text(life)}, and nobody generated it")
            elif maker not in until:
                yield Violation(9, f"{tag} is in the lineage of {_text(life)}, which does not continue {_text(maker)}")
            elif event.n >= until[maker]:
                yield Violation(9, f"{tag} is in the lineage of {_text(life)}, and is from after the boundary", event.n)


def ancestry(view: View, life: Life) -> dict[Life, int]:
    """A life and those that it continues, each with the event of the checkpoint up to which it counts."""
    found, ends = dict[Life, int](), len(view.events)
    following: Life | None = life
    while following is not None and following not in found:
        found[following] = ends
        origin = view.origin(following)
        following = origin[1] if origin else None
        if origin and origin[0] in view.published:
            ends = view.published[origin[0]].n
    return found


def nothing_is_repeated(view: View) -> Iterator[Violation]:
    """11: no call is carried out twice in one life, and none that the boundary continued from has behind it."""
    done: dict[tuple[Any, ...], Event] = {}
    for event, life in view.effects:
        if not event["call"]:
            continue
        key = life, event["role"], event["call"], event["effect"]
        if key in done:
            yield Violation(11, f"{event['effect']} {event['call']} of {_text(life)} is done twice", event.n)
        done[key] = event
        origin = view.origin(life)
        made = view.published.get(origin[0]) if origin else None
        if made is not None and origin is not None:
            yield from _behind(made, event, life)
            began = _began(view, made)
            before = done.get((origin[1], *key[1:]))
            if before is not None and before.n < began:
                text = f"{event['effect']} {event['call']} of {_text(life)} was done before {made.id} was committed"
                yield Violation(11, text, event.n)


def _behind(made: Published, event: Event, life: Life) -> Iterator[Violation]:
    caller, boundary, _ = call_of(event["call"])
    record = made.records.get(caller, {}).get(life.rollout)
    if record is not None:
        state = record[1]["state"]
        at = (state["activation"] or {}).get("boundary", 0) if caller.startswith("agent") else state["boundary"]
        if boundary < at:
            text = f"{event['effect']} {event['call']} of {_text(life)} is below boundary {at} of {made.id}"
            yield Violation(11, text, event.n)


def counts_are_exact(rows: list[dict[str, Any]]) -> Iterator[Violation]:
    """11: a row is what an uninterrupted run gives: every turn once, and the counter where it should be."""
    for row in rows:
        life, turns = row["_midflight_life"], row["turns"]
        tags = [item["id"] for item in row["response"]["output"] if "id" in item]
        seen = [int(tag.split("|")[1]) for tag in tags]
        if seen != list(range(turns)) or row["response"]["metadata"]["midflight_steps"] != str(turns):
            yield Violation(11, f"the row of {life} has the turns {seen} and not {turns}")
        if row["reward"] != 1.0:
            yield Violation(11, f"the counter of {life} does not stand where an uninterrupted run leaves it")


def nothing_is_left(view: View) -> Iterator[Violation]:
    """12: when the run is done, no state holder holds anything of it."""
    for event in view.history.of("holds"):
        left = {name: event["counts"][name] for name in KEPT if event["counts"].get(name)}
        if left:
            yield Violation(12, f"{event['process']} still has {left}", event.n)
        if event["closed"] or event["phase"] != "idle":
            yield Violation(6, f"{event['process']} is {event['phase']} at the end", event.n)


def every_rollout_is_in_the_output(view: View, rollouts: list[str], rows: list[dict[str, Any]]) -> Iterator[Violation]:
    """4 and 3: each rollout has its final line, and the output has each row once."""
    for rollout in rollouts:
        if rollout not in view.delivered:
            yield Violation(4, f"the run is done, and {rollout} has no final line")
    in_output = Counter(row["_ng_rollout_id"] for row in rows)
    yield from (Violation(3, f"{rollout} is {n} times in the output") for rollout, n in in_output.items() if n > 1)
    for rollout, line in view.delivered.items():
        if not line.failed and rollout not in in_output:
            yield Violation(4, f"{rollout} is delivered, and not in the output", line.n)


def rows_of(output: bytes) -> list[dict[str, Any]]:
    """The output that people get."""
    return [orjson.loads(line) for line in output.splitlines()]


def _text(life: Life) -> str:
    return f"{life.rollout}/{life.epoch}.{life.attempt}#{life.n}"

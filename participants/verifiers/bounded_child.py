"""The child of `bounded`: one piece of work after the other, each under a limit of processor time.

Run as a program; it imports nothing of ours. Lines of JSON come in and go out. A work that has used up its time ends
the process by SIGPROF, whatever it is doing, C code included. What a library is imported for at the first work of its
kind does not count. The child ends when its input does.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

FLAGS = re.MULTILINE | re.DOTALL


def find_answer(pattern: str, text: str) -> dict[str, Any]:
    """Of the last match, the first group that is not blank, or else all of it; the whole text without a match."""
    try:
        found = re.compile(pattern, FLAGS)
    except (re.error, RecursionError, OverflowError) as error:
        return {"refused": str(error)}
    matches = deque(found.finditer(text), maxlen=1)
    if not matches:
        return {"found": text.strip()}
    groups = (*matches[0].groups(), matches[0].group())
    return {"found": next((group.strip() for group in groups if group and group.strip()), "")}


def equal_by_library(expected: str, answer: str) -> dict[str, Any]:
    """Whether math-verify holds them to be equal, and what it has read as the answer.

    Its own limits work by SIGALRM in wall time; here they are off, and the parent's in processor time holds.
    """
    library = import_module("math_verify")
    latex, boxed_first = library.LatexExtractionConfig(), library.LatexExtractionConfig(boxed_match_priority=0)
    gold = library.parse(rf"\boxed{{{expected}}}", (latex,), parsing_timeout=None)
    given = library.parse(answer, (boxed_first, library.ExprExtractionConfig()), parsing_timeout=None)
    equal = bool(gold and given) and library.verify(gold, given, timeout_seconds=None)
    read = [each for each in given if isinstance(each, str)]
    return {"equal": bool(equal), "readable": bool(gold), "extracted": read[-1] if read else None}


def _import_library() -> None:
    logging.disable(logging.CRITICAL)  # It warns that its limits are off, and of every answer that it cannot read.
    library = import_module("math_verify")
    library.verify(*(library.parse(text, parsing_timeout=None) for text in ("1", "$x$")), timeout_seconds=None)


def score_by_gym(given: dict[str, Any], answer: str | None) -> dict[str, Any]:
    """What a data set of reasoning-gym says of an answer."""
    found: dict[str, Any] = import_module("gym_scoring").score_by_gym(given, answer)
    return found


def _import_gym() -> None:
    logging.disable(logging.CRITICAL)
    spec = spec_from_file_location("gym_scoring", Path(__file__).with_name("gym_scoring.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["gym_scoring"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.disarm()


WORK: dict[str, tuple[Callable[[], object], Callable[..., dict[str, Any]]]] = {
    "find_answer": (lambda: None, find_answer),
    "equal_by_library": (_import_library, equal_by_library),
    "score_by_gym": (_import_gym, score_by_gym),
}
"""By name: what is done once before, and the work."""


def _done(asked: dict[str, Any], prepared: set[str]) -> dict[str, Any]:
    try:
        prepare, work = WORK[asked["work"]]
        if asked["work"] not in prepared:
            prepare()
            prepared.add(asked["work"])
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])
        try:
            return {"done": work(**asked["arguments"])}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except ModuleNotFoundError as error:
        return {"missing": str(error.name)}
    except MemoryError:
        return {"used_up": True}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Serve until the input ends. The only argument is the limit of memory in bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Of a terminal; whoever asks decides what ends.
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # What a library prints is no reply.
    prepared: set[str] = set()
    for line in sys.stdin:
        replies.write(json.dumps(_done(json.loads(line), prepared)) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()

"""How tests become scores of subtasks, and those a reward; which tests to run next. Nothing here runs anything.

    test       from 0 to 1, what the problem's run script printed
    min        of a subtask: the least score of its tests, times what the subtask is worth
    sum_tests  of a subtask: the number of its tests with a score above 0; it is worth as many as it has

    binary     1 where the subtask that the row names, or else all of them together, have what they are worth
    fraction   the tests with a score of 1, of all tests, each counted once

In binary mode a subtask of aggregation min is over with a test that scores 0, since nothing can change its score then.
A test that scores in between ends nothing: every score that is told is exact. Scores are rounded where they are shown,
and never where they are compared.
"""

from collections.abc import Iterable, Mapping, Sequence

from .problems import Problem, Subtask

Scores = Mapping[str, float]
"""Of tests that have run, by name."""
SLACK = 1e-9
"""Three times 33.3 are less than 99.9, as sums of floats go: such a row is no harder than it says."""


def next_tests(problem: Problem, subtasks: Iterable[str], scores: Scores, size: int, *, all_of_them: bool) -> list[str]:
    """At most `size` tests to run next, in the order of the problem; none if that was all."""
    wanted: set[str] = set()
    for name in subtasks:
        subtask = problem.subtasks[name]
        if all_of_them or not is_over(subtask, scores):
            wanted.update(subtask.tests)
    return [name for name in problem.tests if name in wanted and name not in scores][:size]


def is_over(subtask: Subtask, scores: Scores) -> bool:
    """Whether its score is 0 whatever its other tests do."""
    return subtask.aggregation == "min" and any(scores[name] <= 0 for name in subtask.tests if name in scores)


def score_of(subtask: Subtask, scores: Scores) -> float:
    """Not rounded; of a subtask whose tests have run, or that is over."""
    known = [scores[name] for name in subtask.tests if name in scores]
    if subtask.aggregation == "sum_tests":
        return float(sum(score > 0 for score in known))
    return min(known) * subtask.score


def worth_of(subtask: Subtask) -> float:
    """The most that it can score."""
    return float(len(subtask.tests)) if subtask.aggregation == "sum_tests" else subtask.score


def shown(subtask: Subtask, scores: Scores) -> float:
    """Its score as a contest would show it."""
    score = score_of(subtask, scores)
    return score if subtask.aggregation == "sum_tests" else round(score, subtask.precision)


def binary_reward(subtasks: Sequence[Subtask], scores: Scores, worth: float | None) -> float:
    """1.0 or 0.0; `worth` is what the row says that they are worth, if it does."""
    wanted = sum(map(worth_of, subtasks)) if worth is None else worth
    if wanted <= 0:
        return float(all(scores.get(name, 0.0) >= 1 for subtask in subtasks for name in subtask.tests))
    return float(sum(score_of(subtask, scores) for subtask in subtasks) >= wanted - SLACK * wanted)


def fraction_reward(subtasks: Sequence[Subtask], scores: Scores) -> float:
    """From 0.0 to 1.0."""
    names = {name for subtask in subtasks for name in subtask.tests}
    return sum(scores[name] >= 1 for name in names) / len(names)

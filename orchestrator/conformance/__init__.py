"""The conformance kit: tries the hooks of a resources server, and shows the shortest calls that break a promise."""

from .fresh import ChildDied
from .functions import conformance_tests
from .reports import ConformanceReport, RuleOutcome
from .rules import RULES, Rule
from .running import NoCases, UnknownRule, check_conformance
from .subject import case_of

__all__ = [
    "RULES",
    "ChildDied",
    "ConformanceReport",
    "NoCases",
    "Rule",
    "RuleOutcome",
    "UnknownRule",
    "case_of",
    "check_conformance",
    "conformance_tests",
]

"""Verifiers that ship: resources servers that score what a model has said. Importing them imports nothing heavy."""

from .code_gen import CodeGenServer
from .competitive_coding_challenges import CompetitiveCodingChallengesServer
from .equivalence_llm_judge import EquivalenceLLMJudgeServer
from .genrm_compare import GenRMCompareServer
from .judging import Judgement, JudgingServer
from .math_with_judge import MathWithJudgeServer
from .standins import StandInJudge

__all__ = [
    "CodeGenServer",
    "CompetitiveCodingChallengesServer",
    "EquivalenceLLMJudgeServer",
    "GenRMCompareServer",
    "Judgement",
    "JudgingServer",
    "MathWithJudgeServer",
    "StandInJudge",
]

"""All planted bugs, those of each layer by themselves."""

from .mutant import Mutant
from .of_kinds import BUGS as OF_KINDS
from .of_orchestrator import BUGS as OF_ORCHESTRATOR
from .of_participants import BUGS as OF_PARTICIPANTS
from .of_store import BUGS as OF_STORE

BUGS: tuple[Mutant, ...] = (*OF_STORE, *OF_PARTICIPANTS, *OF_KINDS, *OF_ORCHESTRATOR)

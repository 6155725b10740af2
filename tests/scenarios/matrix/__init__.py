"""The kill matrix: who is killed by SIGKILL in which phase of a checkpoint or a restore, and what becomes of the work.

    python -m tests.scenarios.matrix                      one table on stdout, as docs/kill-matrix.md has it
    python -m tests.scenarios.matrix --only agent,commit  some cells: parts of the names of victim and phase
    python -m tests.scenarios.matrix --json               a line for each cell as it ends

A cell is real servers of its own with four rollouts in flight at different stages, and two checkpoints: an older one,
and one that the phase is a part of. `victims.py` and `phases.py` say who and where, as data with one small function
each; `cell.py` runs one; `checks.py` says, purely, whether its invariants hold and which work was done again.
The controller, where it is the victim, is a process of its own (`doomed.py`) that kills itself at the same points.
"""

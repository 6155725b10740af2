"""The proof: the whole system under faults that a seed draws, judged by twelve invariants; `python -m tests.proof`."""

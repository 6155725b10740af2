"""Tests of the backends: one suite that runs over all, and the faults of each."""

"""Tests of the benchmarks: that they run and say consistent things, never how fast."""

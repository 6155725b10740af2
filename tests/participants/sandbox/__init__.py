"""Tests of running untrusted programs contained."""

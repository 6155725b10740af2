"""Tests of the verifiers that ship."""

"""Tests of the inference backend."""

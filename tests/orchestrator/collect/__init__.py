"""Tests of the collection run."""

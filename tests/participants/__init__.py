"""Tests of the participants."""

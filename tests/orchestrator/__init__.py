"""Tests of what drives a checkpoint, and of the command line."""

"""Tests of the staging helper: its token store, its buffers, its routes, and the backend that uses it."""

"""Crash safety of the store: every crash state, every failing call, and processes that are really killed."""

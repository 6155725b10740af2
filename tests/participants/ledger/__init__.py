"""Tests of the capture ledger."""

"""Tests of the real worker."""

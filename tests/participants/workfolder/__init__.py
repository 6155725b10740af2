"""Tests of working folders."""

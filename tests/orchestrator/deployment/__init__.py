"""Tests of deployment: the servers of a fleet as processes."""

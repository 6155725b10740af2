"""Tests of the controller for training."""

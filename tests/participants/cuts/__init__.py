"""Tests of cutting and continuing generations."""

"""Builders, fakes and servers that several test modules share; only here may a test wait by polling."""

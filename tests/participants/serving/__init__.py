"""Participants in processes of their own."""

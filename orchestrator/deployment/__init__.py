"""Deployment: the servers of a fleet as processes of this host."""

from .config import FleetTable, ServerTable

__all__ = ["FleetTable", "ServerTable"]

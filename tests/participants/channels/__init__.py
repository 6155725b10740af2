"""Channels: frames, both ends of a connection, and forwarding between workers."""

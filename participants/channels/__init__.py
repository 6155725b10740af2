"""Channels: many data calls at once between our own participants over few connections (`frames` has the form)."""

from .client import ChannelPeer, Channels
from .frames import CHANNEL_PATH, WORKERS_PATH
from .server import UVICORN_OPTIONS, channel_route, workers_route

__all__ = [
    "CHANNEL_PATH",
    "UVICORN_OPTIONS",
    "WORKERS_PATH",
    "ChannelPeer",
    "Channels",
    "channel_route",
    "workers_route",
]

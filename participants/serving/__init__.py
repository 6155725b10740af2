"""Serving participants in processes of their own: what a server is made of, and how it runs."""

from .endpoint import Endpoint, Tell
from .loading import find_class, import_target, make, make_agent, make_resources
from .model_settings import ModelSettings, make_model_server
from .settings import ConfigError
from .spec import ServerSpec, parse_spec

__all__ = [
    "ConfigError",
    "Endpoint",
    "ModelSettings",
    "ServerSpec",
    "Tell",
    "find_class",
    "import_target",
    "make",
    "make_agent",
    "make_model_server",
    "make_resources",
    "parse_spec",
]

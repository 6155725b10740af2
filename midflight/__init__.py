"""midflight checkpoints LLM rollouts in mid-flight; this module is the list of its public names."""

from importlib.metadata import version as _version

__version__ = _version("midflight")

__all__ = ["__version__"]

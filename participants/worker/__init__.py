"""A real language model behind the inference backend: a small Llama on the CPU, exact across cuts. Needs torch."""

from .refusals import ExtraMissing, WeightsRefused, WorkerRefused
from .starting import start_engine

__all__ = ["ExtraMissing", "WeightsRefused", "WorkerRefused", "start_engine"]

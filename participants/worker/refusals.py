"""What the worker refuses before it serves; refused requests are `participants.inference.RequestRefused`.

WorkerRefused
├── ExtraMissing      torch is not installed
└── WeightsRefused    a folder of weights that cannot be used
"""

from pathlib import Path


class WorkerRefused(Exception):
    """The worker cannot start."""


class ExtraMissing(WorkerRefused):
    """What the extra `worker` brings is not installed."""

    def __init__(self, missing: str) -> None:
        """Names the missing module."""
        told = "pip install 'midflight[worker]', or in a checkout pip install -e '.[worker]'"
        super().__init__(f"{missing} is not installed. The real model needs the extra worker: {told}")


class WeightsRefused(WorkerRefused):
    """A folder of weights that is damaged, incomplete or of another kind."""

    def __init__(self, folder: Path, problem: str) -> None:
        """Names the folder and what is wrong with it."""
        super().__init__(
            f"cannot use the weights in {folder}: {problem}. Wanted is a Llama with the vocabulary of the backend, "
            "as config.json and model.safetensors"
        )

"""The other process of the kit, which restores what this one's parent has checkpointed; not for people.

python -m orchestrator.conformance module:Class '{"option": "value"}'
"""

import json
import logging
import os
import sys

from .fresh import serve_jobs


def main() -> None:
    """Read jobs from stdin; what the class prints goes to stderr, and the answers to what was stdout."""
    logging.getLogger().addHandler(logging.NullHandler())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve_jobs(sys.argv[1], json.loads(sys.argv[2]), sys.stdin, answers)


if __name__ == "__main__":
    main()

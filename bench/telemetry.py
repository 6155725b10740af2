"""What telemetry costs a collection run: OTLP to an endpoint of this machine, and a page that is asked for, or nothing.

    python -m bench.telemetry --json

The work is that of `bench.collect`, with a checkpoint every `--interval` seconds, off and on in pairs of neighbouring
runs. `overhead` is how much more processor time of the collecting process an episode takes, of each pair; other work on
the machine moves it by more than telemetry does. So `own` is what can be told apart: the processor time of telemetry's
threads, and of the calls that the event loop makes, as part of all.

Off, each call of the hook returns at once: `off_ns` is what one costs.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from orchestrator.collect import Config, Options, collect
from participants import telemetry
from participants.inference import DEFAULT_MODEL
from participants.telemetry import Readings, Span, names
from tests_free_port import free_port

from .endpoint import Endpoint, endpoint, write_rows

"""A fuzzer that looks at which branches its inputs reach: `python -m tests.fuzz.guided PARSER [--seconds N]`.

It needs the extra `fuzz` (atheris), which is best had in an environment of its own; without a parser it lists them. It
begins with the sound documents of the parser, and keeps below `--corpus` what reaches more. It ends after so many
seconds, or where a parser does what it must not: then it prints the error and where it has left the input, and its exit
code is not 0.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.command_line import Command, count

MAX_BYTES = 4096
WATCHED = ["midflight", "orchestrator", "participants", "store"]
MISSING = "atheris is missing: python -m pip install -e '.[dev,fuzz]', best in an environment of its own"


def main(given: Sequence[str]) -> int:
    """Fuzz one parser, or list them all."""
    arguments = _arguments(given)
    try:
        import atheris
    except ImportError:
        print(MISSING, file=sys.stderr)  # noqa: T201
        return 2
    with atheris.instrument_imports(include=WATCHED):
        from participants.telemetry import install

        from .parsers import PARSERS, check
    from tests.support.recording import Recording

    if arguments.parser not in PARSERS:
        print(*PARSERS, sep="\n")  # noqa: T201
        return 0 if arguments.parser is None else 2
    parser = PARSERS[arguments.parser]
    folder = arguments.corpus / parser.name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(parser.seeds()):
        (folder / f"seed-{number}").write_bytes(seed)
    install(Recording())  # Where nobody records, no header is looked at.

    def feed(data: bytes) -> None:
        check(parser, data)

    limits = [f"-max_total_time={arguments.seconds}", f"-max_len={MAX_BYTES}", "-timeout=10", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}-", "-print_final_stats=1", str(folder)], feed)
    atheris.Fuzz()  # It ends the process by itself.
    return 0


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = Command("tests.fuzz.guided", __doc__)
    corpus = Path(tempfile.gettempdir()) / "midflight-corpus"
    parser.add_argument("parser", nargs="?", help="one of those that are listed without it")
    parser.add_argument("--seconds", type=count, default=60, help="for so long")
    parser.add_argument("--corpus", type=Path, default=corpus, help="the folder that keeps what reaches more")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

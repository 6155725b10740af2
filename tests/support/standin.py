"""A server that is none: it prints its line, says who it is to whoever has the token, and does nothing else.

It starts in a fraction of the time, and its `options` make it fail as servers do: `dies`, `refuses` (exits
with 2), `never_ready`, `deaf` (to
SIGTERM), `elsewhere` (another port than it was told), `impostor` (says that it is something else), `child` (starts a
process in a session of its own). Run it with a file of a spec.
"""

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-S", str(Path(__file__)))
"""What starts one; the file of the spec follows."""


class _Server(HTTPServer):
    allow_reuse_address = True
    spec: dict[str, Any]


class _Answers(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        spec = self.server.spec
        trusted = self.headers.get("authorization") == f"Bearer {os.environ[spec['token_env']]}"
        kind = "impostor" if spec["options"].get("impostor") else spec["kind"]
        body = json.dumps({"kind": kind, "name": spec["name"]} if trusted else {}).encode()
        self.send_response(200 if trusted else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    options = spec["options"]
    print("a stand-in begins", file=sys.stderr, flush=True)  # noqa: T201 - its log
    if options.get("dies"):
        sys.exit("what a server says before it dies")
    if options.get("refuses"):
        print("what is wrong with its options", file=sys.stderr)  # noqa: T201 - its log
        sys.exit(2)
    host, _, port = spec["listen"].rpartition(":")
    server = _Server((host, 0 if options.get("elsewhere") else int(port)), _Answers)
    server.spec = spec
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.get("deaf") else lambda *_: sys.exit(0))
    if options.get("child"):
        subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"], start_new_session=True)
    if not options.get("never_ready"):
        print(f"ready: http://{host}:{server.server_port}", flush=True)  # noqa: T201 - what starters wait for
    server.serve_forever()


if __name__ == "__main__":
    main()

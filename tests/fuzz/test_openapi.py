"""What the control plane says of itself is true: schemathesis reads its OpenAPI, and tries that and more."""

import subprocess
from pathlib import Path

import pytest

from participants import CONTROL_PREFIX
from tests.support.processes import program

from .attacked import TOKEN, target, unharmed

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCHEMATHESIS = program("schemathesis")
LONGEST_S = 20
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth"


@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="schemathesis is not installed; it is in the extra dev")
def test_the_control_plane_answers_as_it_is_described(tmp_path: Path) -> None:
    """Every route, sound and unsound messages: a status and a body of the description, none of them a defect."""
    with target(tmp_path) as attacked:
        url = f"{attacked.server.url}{CONTROL_PREFIX}/openapi.json"
        command = [str(SCHEMATHESIS), "run", url, "--header", f"Authorization: Bearer {TOKEN}", "--checks", CHECKS,
                   "--phases", "examples,coverage,fuzzing", "--max-time", str(LONGEST_S), "--max-examples", "10",
                   "--seed", "1", "--request-timeout", "10", "--no-shrink", "--max-failures", "3", "--no-color",
                   "--generation-database", "none", "--warnings", "off"]  # fmt: skip
        with unharmed(attacked, changed=True):
            ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]

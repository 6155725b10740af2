"""The batch script of examples/hosts, with stand-ins for Slurm's commands and for midflight: what runs where."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.collect.config import load_config
from tests.support.waiting import until

from .files import write_file

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

SCRIPT = Path(__file__).parents[3] / "examples" / "hosts" / "slurm.sh"
PATIENCE_S = 20.0
STANDINS = {
    "scontrol": 'echo "$@" >> "$SAID"; printf "n1\\nn2\\n"',
    "srun": """
while [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && export NODE=${1#--nodelist=}; shift; done
exec "$@"
""",
    "hostname": 'echo "10.0.0.${NODE#n} 172.17.0.1"',
    "midflight": """
echo "$NODE $* ${#FLEET_TOKEN}" >> "$SAID"
trap 'echo "$1 ended" >> "$SAID"; exit $CODE' TERM
if [[ $1 == collect && -z $WAITS ]]; then
  until [[ $(grep -c "up waits" "$SAID") == 2 ]]; do sleep 0.05; done
  exit "$CODE"
fi
echo "$1 waits" >> "$SAID"
while true; do sleep 0.05; done
""",
}


@contextmanager
def batch(folder: Path, code: int, waits: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The script as a job of two nodes."""
    (folder / "bin").mkdir()
    for name, text in STANDINS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    text = '[run]\ninput = "rows.jsonl"\noutput = "out.jsonl"\n'
    file = write_file(folder, fleet=f'mode = "attach"\ntoken_env = "FLEET_TOKEN"\n{text}')
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    own = {"SAID": str(folder / "said"), "CODE": str(code), "WAITS": waits}
    environment = {**os.environ, **slurm, **own, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    process = subprocess.Popen(["bash", str(SCRIPT), str(file)], env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_each_node_of_a_job_runs_its_servers_and_the_first_the_run(tmp_path: Path) -> None:
    """The nodes are the hosts of the file, with one token for all; the code of the run is that of the job."""
    with batch(tmp_path, 3, "") as process:
        assert process.wait(PATIENCE_S) == 3
    file = tmp_path / "run.7.toml"
    fleet = load_config(file).fleet
    assert fleet is not None
    assert fleet.hosts == {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    said = (tmp_path / "said").read_text().splitlines()
    assert {f"n1 up --host n1 {file} 64", f"n2 up --host n2 {file} 64", f" collect {file} 64"} <= set(said)


def test_a_job_that_is_preempted_ends_its_run_in_order(tmp_path: Path) -> None:
    """The run is told, and takes its last checkpoint; then the servers are."""
    with batch(tmp_path, 75, "yes") as process:
        until(lambda: _said(tmp_path).count("waits") == 3, PATIENCE_S, lambda: _said(tmp_path))
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 75
    until(lambda: _said(tmp_path).count("up ended") == 2, PATIENCE_S, lambda: _said(tmp_path))
    assert _said(tmp_path).index("collect ended") < _said(tmp_path).index("up ended")


def _said(folder: Path) -> str:
    path = folder / "said"
    return path.read_text() if path.exists() else ""

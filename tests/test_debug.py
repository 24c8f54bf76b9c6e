"""Scripts run by hand."""

import subprocess
import sys

from conftest import Workflow, copied
from tpulm.core.files import fingerprints

SHARD = "results/tfrecords/train/00000-of-00004.tfrecord"


def debug(workflow: Workflow, *arguments: str) -> str:
    command = [sys.executable, str(workflow / "tools/debug.py"), *arguments]
    done = subprocess.run(command, cwd=workflow.folder, capture_output=True, text=True, input="p 6 * 7\nquit\n")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_script_runs_by_hand_and_leaves_results_alone(trained, tmp_path):
    workflow = copied(trained, tmp_path)
    before = fingerprints(workflow / "results")
    assert "rule write_shard, scripts/tfrecords/write_shard.py; outputs and log: debug/" in debug(workflow, SHARD)
    assert fingerprints(workflow / "results") == before
    assert (workflow / "debug" / SHARD).read_bytes() == (workflow / SHARD).read_bytes()
    script = workflow / "scripts/tfrecords/write_shard.py"
    first = "    recipe, inputs"
    script.write_text(script.read_text().replace(first, f"    raise ValueError('here')\n{first}"))
    assert "(Pdb) 42" in debug(workflow, SHARD, "--pdb")

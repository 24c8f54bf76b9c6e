"""Scripts run by hand."""

import subprocess
import sys

from conftest import ROOT, Workflow, copied
from tpulm.core.files import fingerprints

SHARD = "results/tfrecords/train/00000-of-00004.tfrecord"


def debug(workflow: Workflow, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, str(workflow / "tools/debug.py"), *arguments]
    done = subprocess.run(command, cwd=workflow.folder, capture_output=True, text=True, input="p 6 * 7\nquit\n")
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_script_runs_by_hand_and_leaves_results_alone(trained, tmp_path):
    workflow = copied(trained, tmp_path)
    before = fingerprints(workflow / "results")
    said = debug(workflow, SHARD)
    assert "rule write_shard, scripts/tfrecords/write_shard.py; outputs and log: debug/" in said
    assert "[tfrecords train 1/4] " in said and " records of 128 tokens from " in said
    assert fingerprints(workflow / "results") == before
    assert (workflow / "debug" / SHARD).read_bytes() == (workflow / SHARD).read_bytes()
    script = workflow / "scripts/tfrecords/write_shard.py"
    first = "    recipe, inputs"
    script.write_text(script.read_text().replace(first, f"    raise ValueError('here')\n{first}"))
    assert "(Pdb) 42" in debug(workflow, SHARD, "--pdb")
    (workflow / "results/tokenizer/tokenizer.json").unlink()
    said = debug(workflow, SHARD, code=1)
    assert said == (
        "error: results/tokenizer/tokenizer.json, an input of rule write_shard, is not there: run snakemake "
        "results/tokenizer/tokenizer.json\n"
    )


def test_a_file_that_no_rule_makes(fresh):
    assert debug(fresh, "results/nothing.json", code=1).startswith("error: no rule makes results/nothing.json; ")


def test_the_tool_says_how_it_is_used():
    done = subprocess.run([sys.executable, ROOT / "tools/debug.py", "--help"], capture_output=True, text=True)
    assert "python tools/debug.py results/tfrecords/train/00000-of-00004.tfrecord" in done.stdout

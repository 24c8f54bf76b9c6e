"""Benchmarks, at tiny size: that they run, and agree with each other on what they train."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT, outside


@pytest.mark.long  # four processes that import TensorFlow or JAX
def test_steps_are_measured_and_learn_the_same():
    command = [sys.executable, str(ROOT / "benchmarks/steps.py"), "--quick", "--rounds", "1"]
    done = subprocess.run(command, env=outside(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split(" | ") for line in done.stdout.splitlines() if "`" in line]
    assert [re.search("`.*`", row[0])[0] for row in rows] == ["`fit`", "`backend: tensorflow`", "`backend: jax`"]
    losses = [float(row[5]) for row in rows]
    assert max(losses) - min(losses) < 0.1

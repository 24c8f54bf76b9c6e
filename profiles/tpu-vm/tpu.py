#!/usr/bin/env python3
"""Runs the jobs of a Snakemake workflow on Cloud TPU VMs through `gcloud`; README.md beside this says how to use it.

The program is the package tpu_vm beside this file. Workers, too, start it from the folder that all machines see.
"""

import os
import sys

# Links are not followed: workers see the folder under the path that it has here.
sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from tpu_vm.commands import main

main(sys.argv[1:])

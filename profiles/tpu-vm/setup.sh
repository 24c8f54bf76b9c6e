#!/bin/sh
# Sets up the software of a TPU VM from the locks in envs/, with their hashes, on its own disk: as `make setup` does here.
# Usage: sh setup.sh FOLDER NAME, in the folder of the workflow. FOLDER/environment is the result, from envs/NAME.txt.
set -u
step() { "$@" || { echo "error: the software of a worker could not be set up: '$*' failed."; exit 1; }; }

[ -e "$1/ready" ] && exit 0
step rm -rf "$1"
# The images of TPU VMs have an older Python than 3.11, with pip; uv brings its own where it finds none.
step python3 -m pip install --quiet --require-hashes --target "$1/bootstrap" -r envs/bootstrap.txt
step "$1/bootstrap/bin/uv" venv --quiet --python 3.11 "$1/environment"
step "$1/bootstrap/bin/uv" pip sync --quiet --require-hashes --compile-bytecode \
  --python "$1/environment/bin/python" "envs/$2.txt"
step "$1/environment/bin/python" envs/mend_transformers.py
step touch "$1/ready"

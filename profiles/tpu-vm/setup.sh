#!/bin/sh
# Sets up the software of a TPU VM from the locks in envs/, with their hashes, on its own disk: as `make setup` does here.
# Usage: sh setup.sh FOLDER NAME PYTHON. FOLDER/environment is the result, from
# envs/NAME.txt, with Python PYTHON, such as 3.11.
set -u
step() { "$@" || { echo "error: the software of a worker could not be set up: '$*' failed."; exit 1; }; }

[ -e "$1/ready" ] && exit 0
step cd "$(dirname "$0")/../.."
step rm -rf "$1"
# The images of TPU VMs have an older Python than the workflow needs; uv brings its own where it finds none.
python3 -m venv "$1/bootstrap" ||
  { echo "error: python3 of a worker has no venv module; in its image: sudo apt-get install python3-venv"; exit 1; }
step "$1/bootstrap/bin/python" -m pip install --quiet --require-hashes -r envs/bootstrap.txt
step "$1/bootstrap/bin/uv" venv --quiet --python "$3" "$1/environment"
step "$1/bootstrap/bin/uv" pip sync --quiet --require-hashes --compile-bytecode \
  --python "$1/environment/bin/python" "envs/$2.txt" envs/gcs.txt
step touch "$1/ready"

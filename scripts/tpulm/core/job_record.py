"""Records of jobs: where and when each attempt of a job ran, with what software, and what it made.

LOG.jobs.jsonl beside a job's LOG.log, JSON objects, one a line: a `start` for each attempt, and an `end` unless it was
killed. An attempt after one that succeeded begins a new file. It is no output and no input, so that clocks and hosts
make nothing stale; the archive, the report and tools/provenance.py read it. Where results are in a bucket and the job's
folder goes with its machine, as in a pod, the record is stored in the bucket, beside the log there.

start  time (seconds since 1970), rule, wildcards, threads, recipe, inputs (paths), host (see `host`)
note   what the job says of its attempt: resumed_from_step, of a snapshot; repeated_steps, of an attempt before
end    time, exit (0 or 1), cpu_seconds (of the job and its processes), memory_bytes (peak of one of them), software
       (version by name), accelerators (kind, and how many), outputs (of each file that is there: bytes, sha256)

Secrets of the environment are kept out of it, and of a job's output and logs: see tpulm.core.secrets.
"""

import contextlib
import json
import os
import platform
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tpulm.core import bucket, processes
from tpulm.core.devices import IN_USE
from tpulm.core.files import sha256_of_each, write_text
from tpulm.core.secrets import redacted_values

ENDING = ".jobs.jsonl"
CLOCKS_DIFFER = 60  # seconds, at most, between hosts
# Software whose version can change a number, if the job has imported it: module, distribution.
SOFTWARE = {
    "jax": "jax", "jaxlib": "jaxlib", "libtpu": "libtpu", "keras": "keras", "keras_hub": "keras-hub",
    "tensorflow": "tensorflow", "tf_keras": "tf-keras", "transformers": "transformers", "tokenizers": "tokenizers",
    "sentencepiece": "sentencepiece", "numpy": "numpy", "pyarrow": "pyarrow", "datasets": "datasets",
    "safetensors": "safetensors", "vl_convert": "vl-convert-python",
}  # fmt: skip
current: list[Path] = []  # the record of this process' job
# Below it are Snakemake's copies of what is in buckets: BUCKET/NAME.
COPIES = ".snakemake/storage/gcs/"
# Where the path in a working folder begins.
IN_EXPERIMENT, IN_FOLDER = re.compile(r"/experiments/[^/]+/(?:results|logs)/"), re.compile(r"/(?:results|logs)/")
STORE = "TPULM_STORE_RECORDS"  # in the environment of a job whose folder goes with its machine


def note(**facts: int) -> None:
    """Add facts to the record of this job's attempt."""
    for path in current:
        append(path, {"event": "note"} | facts)


def attempts() -> int:
    """Return how many attempts of this job there have been since it last succeeded, this one included."""
    return sum(line["event"] == "start" for path in current for line in read(path))


def path_of(log: str | Path) -> Path:
    """Return the record of the job with this log."""
    return Path(str(log).removesuffix(".log") + ENDING)


def name_here(path: str) -> str:
    """Return the path of a result or a log in a working folder, also for its URL and for Snakemake's copy of it."""
    known = (IN_EXPERIMENT.search(path) or IN_FOLDER.search(path)) if bucket.remote(path) or COPIES in path else None
    return path[known.start() + 1 :] if known else path


def url_of(path: str | Path) -> str | None:
    """Return the URL of what Snakemake has, or would have, a copy of at this path; None of a file of this folder."""
    _, copy, name = str(path).partition(COPIES)
    return f"{bucket.SCHEME}{name}" if copy else None


def stored(path: Path) -> str | None:
    """Return the URL of a record in the bucket; None where it stays in this folder."""
    return url_of(path) if STORE in os.environ else None


def fetch(path: Path) -> None:
    """Bring a record of earlier attempts from the bucket, where it is there."""
    url = stored(path)
    if url and not path.exists():
        with contextlib.suppress(Exception):
            content = bucket.read(url)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def store(path: Path) -> None:
    """Write a record to the bucket, where that is its place."""
    url = stored(path)
    if url:
        with contextlib.suppress(Exception):
            bucket.upload(path, url)


def read(path: Path) -> list[dict]:
    """Return the lines of a record; none of one that cannot be read, without a line that a crash cut short."""
    with contextlib.suppress(OSError):
        return lines_of(path.read_text(encoding="utf-8", errors="replace"))
    return []


def cut_short(log: str | Path, since: float) -> bool:
    """Return whether an attempt of the job with this log began since then and came to no end: killed, or crashed.

    since  seconds since 1970, of this machine's clock
    """
    lines = read(path_of(log))
    began = [line.get("time", 0) for line in lines if line["event"] == "start"]
    return bool(began) and began[-1] >= since - CLOCKS_DIFFER and lines[-1]["event"] != "end"


def lines_of(text: str) -> list[dict]:
    """Return the lines of a record's text, without those that are none."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict) and line.get("event") in ("start", "note", "end")]


def of_logs(logs: Iterable[str]) -> dict[str, list[dict]]:
    """Return the lines of the records of jobs, by their logs: of this folder or, of pods, the bucket.

    What cannot be read is left out.
    """
    paths = {log: path_of(log) for log in logs}
    urls = {log: url for log, path in paths.items() if (url := url_of(path)) and not path.exists()}
    found = {log: read(path) for log, path in paths.items() if log not in urls}
    requests = {}
    with contextlib.suppress(Exception):  # of the login, for example
        requests = {log: bucket.request(url) for log, url in urls.items()}
    for log, request in requests.items():
        with contextlib.suppress(Exception):
            found[log] = lines_of(request.result().decode("utf-8", errors="replace"))
    return found


def host() -> dict[str, Any]:
    """Return what kind of machine this is: system, machine, processor and how many of them the job may use.

    Its name is left out: it says nothing about a number, and archives are given away.
    """
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(errors="replace").splitlines() if cpus.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part")))
    features = next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set())
    vectors = [name for name in ("avx512f", "avx2", "sve", "asimd") if name in features]
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": next(names, platform.processor() or "unknown"),
        "vectors": vectors[0] if vectors else "none",
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def software() -> dict[str, str]:
    """Return the versions of what this process has imported."""
    # A module that is kept from being imported is None there.
    imported = {name: found for module, name in SOFTWARE.items() if (found := sys.modules.get(module))}
    # What is installed is asked last: to look through all of it takes a job longer than some of its work.
    return {name: version for name, module in imported.items() if (version := version_of(name, module))}


def version_of(distribution: str, module: ModuleType) -> str | None:
    """Return the version of a module, by itself or as it was installed; None where neither says it."""
    version = getattr(module, "__version__", None)
    if not isinstance(version, str):
        from importlib import metadata

        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
        return None
    return version


def accelerators() -> dict[str, int]:
    """Return the devices that this process computes on, by their kind; where it has not said, this machine's GPUs."""
    if IN_USE:
        return dict(IN_USE)
    models = (path.read_text() for path in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return dict(Counter(text.partition("\n")[0].partition(":")[2].strip() for text in models))


def made(outputs: Iterable[str]) -> dict[str, dict]:
    """Return bytes and sha256 of every output that is there; of a folder, of each file but hidden ones."""
    paths = []
    for output in map(Path, outputs):
        files = sorted(output.rglob("[!.]*")) if output.is_dir() else [output]
        paths += [path for path in files if path.is_file()]
    digests = sha256_of_each(paths)
    return {
        str(path): {"bytes": path.stat().st_size, "sha256": digest} for path, digest in zip(paths, digests, strict=True)
    }


@contextlib.contextmanager
def recorded(log: str) -> Iterator[None]:
    """Record the attempt that runs in this block, where Snakemake has started it: its script has `snakemake`.

    What cannot be recorded is left out: a record must not end a job.
    """
    job = getattr(sys.modules.get("__main__"), "snakemake", None)
    path = path_of(log)
    if job is None or not hasattr(job, "rule") or processes.is_worker():
        # Of processes that train as one, the job that started them has the record; the first adds its notes.
        current[:] = [path] if processes.is_worker() and not processes.number() else []
        yield
        return
    began, current[:] = time.time(), [path]
    start = {"rule": job.rule, "wildcards": dict(job.wildcards.items()), "threads": job.threads}
    start |= {"recipe": job.params.get("recipe"), "inputs": sorted(map(str, job.input)), "host": host()}
    fetch(path)
    with contextlib.suppress(OSError):
        if any(line.get("exit") == 0 for line in read(path)):
            write_text(path, "")
    append(path, {"event": "start", "time": began} | start)
    store(path)  # now, or nothing would tell of an attempt that is killed
    code = 1
    try:
        yield
        code = 0
    except SystemExit as ended:
        code = int(bool(ended.code))
        raise
    finally:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        end = {"event": "end", "time": time.time(), "exit": code}
        end["cpu_seconds"] = round(sum(usage.ru_utime + usage.ru_stime for usage in used), 3)
        end["memory_bytes"] = max(peak_memory(), 1024 * used[1].ru_maxrss)
        with contextlib.suppress(Exception):
            end |= {"software": software(), "accelerators": accelerators()}
            end["outputs"] = made(map(str, job.output)) if code == 0 else {}
        append(path, end)
        store(path)


def peak_memory() -> int:
    """Return the most memory that this program has held at once, in bytes.

    Where the kernel does not tell it (VmHWM of proc(5)), that of getrusage(2), which begins with what the process held
    that started this program.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def append(path: Path, line: dict) -> None:
    """Append a line, all of it at once."""
    with contextlib.suppress(OSError, ValueError):
        plain = json.loads(json.dumps(line, default=str, sort_keys=True))
        text = json.dumps(redacted_values(plain), sort_keys=True) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

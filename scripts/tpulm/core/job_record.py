"""The record that a running job leaves in the ledger (tpulm.core.ledger): its start, its notes and its end.

Secrets of the environment are kept out of it, and of a job's output and logs: see tpulm.core.secrets.
"""

import contextlib
import os
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tpulm.core import bucket, ledger, processes
from tpulm.core.code_digest import SOFTWARE, code_of_param
from tpulm.core.devices import IN_USE
from tpulm.core.errors import UserError
from tpulm.core.files import files_of, sha256_of_each

FLAGS = ("XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS")  # flags of compilers, which a user can set
current: list[Path] = []  # the record of this process' job


def note(**facts: Any) -> None:
    """Add facts to the record of this job's attempt."""
    for path in current:
        ledger.append(path, {"event": "note"} | facts)


def attempts() -> int:
    """Return how many attempts of this job there have been since it last succeeded, this one too; 0 if unrecorded."""
    return sum(len(ledger.runs_of(ledger.read_record(path))[-1]) for path in current)


def known_jobs() -> list[ledger.Job]:
    """Return the jobs of the ledger that this job's record is in, those that ran elsewhere, too."""
    jobs = []
    for folder in {ledger.folder_of(path) for path in current}:
        ledger.synchronize(folder)
        jobs += ledger.jobs_of(Path(), folder)
    return jobs


def host() -> dict[str, Any]:
    """Return what kind of machine this is, without its host name: archives are given away."""
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


def digests_of_inputs(inputs: Iterable[str]) -> dict[str, str | None]:
    """Return the SHA-256 of each file that a job reads, by its name; None of one that it reads in a bucket."""
    found: dict[str, str | None] = {}
    files: dict[str, Path] = {}
    for path in inputs:
        if bucket.remote(path):
            found[ledger.name_here(path)] = None
        files |= {ledger.name_here(str(file)): file for file in files_of(path)}
    return found | dict(zip(files, sha256_of_each(files.values(), known=True), strict=True))


def digests_of_outputs(outputs: Iterable[str]) -> dict[str, dict]:
    """Return bytes and sha256 of every output that is there, by its name; of a folder, of each file but hidden ones."""
    paths = [file for output in outputs for file in files_of(output)]
    digests = sha256_of_each(paths, known=True)
    return {
        ledger.name_here(str(path)): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(paths, digests, strict=True)
    }


@contextlib.contextmanager
def recorded(log: str, say: Callable[[str], None]) -> Iterator[None]:
    """Record the attempt that runs in this block, where Snakemake has started it: its script has `snakemake`.

    An attempt that cannot be recorded fails: OSError, UserError. say  tells that the attempt before came to no end
    """
    job = getattr(sys.modules.get("__main__"), "snakemake", None)
    path = ledger.path_of(log)
    if job is None or not hasattr(job, "rule") or processes.is_worker():
        # Of processes that train as one, the job that started them has the record; the first adds its notes.
        current[:] = [path] if processes.is_worker() and not processes.number() else []
        yield
        return
    current[:] = [path]
    if url := ledger.url_of(path):
        with contextlib.suppress(FileNotFoundError):
            content = bucket.read_object(url)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    before = ledger.last_attempt(path)
    if before and before["exit"] is None:
        say("the last attempt of this job was killed, or crashed: its record has no end")
    code = code_of_param(job.params["code"])
    if code.param() != job.params["code"]:
        raise UserError("the code has changed since this Snakemake started; run it again.")
    start = {"rule": job.rule, "script": code.script, "wildcards": dict(job.wildcards.items()), "threads": job.threads}
    start |= {"recipe": job.params.get("recipe"), "code": code.modules, "packages": code.packages, "host": host()}
    start["flags"] = {name: os.environ[name] for name in FLAGS if name in os.environ}
    start["inputs"] = digests_of_inputs(sorted({*map(str, job.input)}))
    ledger.append(path, {"event": "start", "time": time.time()} | start)
    exit_code = 1
    try:
        yield
        exit_code = 0
    except SystemExit as left:
        exit_code = int(bool(left.code))
        raise
    finally:
        record_end(path, job.output, exit_code)


def record_end(path: Path, outputs: Iterable[object], code: int) -> None:
    """Record the end of an attempt with this exit code. Raises OSError, UserError where it succeeded."""
    there = [] if code else list(map(str, outputs))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    line = {
        "event": "end",
        "outputs": digests_of_outputs(there),
        "folders": [ledger.name_here(output) for output in there if os.path.isdir(output)],
        "time": time.time(),
        "exit": code,
        "cpu_seconds": round(sum(usage.ru_utime + usage.ru_stime for usage in used), 3),
        "memory_bytes": max(peak_memory(), 1024 * used[1].ru_maxrss),
        "device_memory_bytes": device_memory(),
        "software": software(),
        "accelerators": accelerators(),
    }
    # A failure is said, whether or not there is room to record it.
    with contextlib.suppress(Exception) if code else contextlib.nullcontext():
        ledger.append(path, line)


def device_memory() -> int | None:
    """Return the most memory that the first device has held, in bytes; None where JAX has none in use or cannot say."""
    jax = sys.modules.get("jax") if IN_USE else None
    return ((jax and jax.local_devices()[0].memory_stats()) or {}).get("peak_bytes_in_use")


def peak_memory() -> int:
    """Return the most memory that this program has held, bytes: VmHWM of proc(5), else that of getrusage(2)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

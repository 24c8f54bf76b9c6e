"""Start Keras on JAX in this process: devices, threads, memory, precision, cache of compiled programs.

All of this must be set before JAX is imported, so a script calls `start` before it imports a module that imports JAX or
Keras: most of the rooms models, training, planning, evaluation and demo. Only precision and determinism and, on a CPU,
the numbers of threads and virtual devices have an effect on results.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Mapping

from tpulm.compat.optional_imports import kept_out
from tpulm.core import processes
from tpulm.core.accelerators import check_devices
from tpulm.core.devices import accelerator_here, cache_folder, gpu_here, ignore_settings, keep_to_cpu, tpu_here
from tpulm.specs.recipes import determinism_of

# Parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
NEVER = -1


def keep_freed_memory() -> None:
    """Keep freed memory for later allocations, with glibc; the process returns none. Call it before threads start."""
    # XLA for CPUs allocates the temporaries of a program anew at each call. By default, blocks of more than 32 MiB come
    # from the kernel each time, which sets them to zero page by page: a fifth of the time of a small step. Arenas of
    # glibc other than the first cannot hold such blocks.
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER), (M_ARENA_MAX, 1)):
            mallopt(parameter, value)


def start(
    cpu_threads: int,
    host_device_count: int = 1,
    precision: str = "float32",
    determinism: str = "bytes",
    repeats: bool = True,
    resources: Mapping | None = None,
    on_cpu: bool = False,
) -> None:
    """Import Keras with the JAX backend, once per process.

    cpu_threads        threads of XLA's pool on a CPU: another number adds up floats in another order
    host_device_count  virtual devices where there is no accelerator, of all processes together; an accelerator is
                       used as it is
    precision          float32, mixed_bfloat16 (variables float32, arithmetic bfloat16) or bfloat16 (both)
    determinism        bytes, or steps: on a GPU, operations that add up in any order
    repeats            whether programs run many times, so that a CPU keeps the memory that one frees for the next
    resources          of a job that trains, which needs the devices that they request
    on_cpu             whether to leave the accelerators to other jobs, for a rule that requests none

    Raises UserError if there are other devices than `resources` request.
    """
    ignore_settings()
    os.environ["KERAS_BACKEND"] = "jax"
    if on_cpu:
        keep_to_cpu()
    os.environ["NPROC"] = str(cpu_threads)  # sizes the thread pool of XLA; one per device at the least
    flags = [f"--xla_force_host_platform_device_count={max(1, host_device_count // processes.count())}"]
    if determinism == "bytes":  # otherwise scatters, as in an embedding's gradient, add up in any order
        flags.append("--xla_gpu_deterministic_ops=true")
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not tpu_here():
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")  # libtpu, installed for plans, would report that it has no TPU
    # JAX refuses the old name together with the new one.
    if resources and gpu_here() and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
        os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", "0.9")  # JAX alone takes 0.75 of a GPU
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache_folder("jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    if repeats and (on_cpu or not accelerator_here()):
        keep_freed_memory()
    if processes.count() > 1:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            os.environ[processes.COORDINATOR],
            processes.count(),
            processes.number(),
            cluster_detection_method="deactivate",  # Slurm's would leave each process one GPU of its many
            shutdown_timeout_seconds=3600,
        )
    with kept_out():
        import keras
        import keras_hub  # noqa: F401

    if processes.count() > 1:
        keras.utils.set_random_seed(0)  # all processes must draw the same, also weights that loading replaces
    if resources:
        import jax

        check_devices(resources, jax.device_count(), jax.devices()[0].device_kind)
    set_precision(precision)
    # tpulm.models.attention chooses the kernel, as planned. On a TPU, Keras 3.15 treats a missing mask as a causal one.
    keras.config.disable_flash_attention()


def start_to_train(recipe: Mapping, resources: Mapping, say: Callable[[str], None]) -> None:
    """Start the processes that train a segment together, and Keras in each of them; see `start`.

    recipe  of the segment; resources, say  as for `tpulm.core.processes.launch_workers`

    Ends the program of a process that has only started others, when these have ended.
    """
    if processes.launch_workers(resources, say):
        sys.exit()
    how = recipe["precision"], determinism_of(recipe)
    start(recipe["cpu_threads"], recipe["host_device_count"], *how, resources=resources)


def set_precision(precision: str) -> None:
    """Set the dtypes of new variables and of arithmetic; see `start`."""
    import keras

    # Also for bfloat16: with another type, Keras 3.15 makes float32 of integers, and float16 of an integer and a float.
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(precision)
    keras.config.set_epsilon(1e-7)  # Keras's default, which a file in KERAS_HOME can change
    keras.config.set_image_data_format("channels_last")

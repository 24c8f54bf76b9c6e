"""Start TensorFlow in this process: devices, threads, cache of compiled programs. Takes seconds to import.

This module sets the environment variables that TensorFlow reads on import: import it before TensorFlow.
"""

import os
from collections.abc import Callable, Mapping

from tpulm.core.accelerators import check_devices, is_tpu, tpu_name
from tpulm.core.devices import IN_USE, ignore_settings, tensorflow_flags, tpu_here, tpu_versions
from tpulm.core.errors import UserError

ignore_settings()
os.environ["TF_XLA_FLAGS"] = tensorflow_flags(os.environ.get("TF_XLA_FLAGS", ""))
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # transformers' TensorFlow models are Keras 2
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402
import transformers  # noqa: E402, F401, whose models of TensorFlow are taken from here


def start(
    cpu_threads: int, host_device_count: int, tpu: bool = True, resources: Mapping | None = None
) -> tf.distribute.Strategy:
    """Return the strategy for the devices of this machine: a TPU, several GPUs, logical CPUs, or one device.

    tpu        whether to use a TPU: jobs that only run a model do without, with any TensorFlow
    resources  of a job that trains, which needs the devices that they request

    Raises UserError if the environment names a TPU that this TensorFlow cannot use, or there are other devices.
    Dropout follows explicit generators from now on, which `train_step` sets by the step.
    """
    tf.config.threading.set_intra_op_parallelism_threads(cpu_threads)
    tf.config.threading.set_inter_op_parallelism_threads(cpu_threads)
    tf_keras.backend.experimental.enable_tf_random_generator()
    requested = (resources or {}).get("accelerator", "")
    named = "TPU_NAME" in os.environ or "TPU_ACCELERATOR_TYPE" in os.environ
    strategy = strategy_here(tpu and (named or (is_tpu(requested) and tpu_here())), host_device_count)
    name = device_name(requested)
    if resources:
        check_devices(resources, strategy.num_replicas_in_sync, name)
    IN_USE[name] = strategy.num_replicas_in_sync
    return strategy


def strategy_here(tpu: bool, host_device_count: int) -> tf.distribute.Strategy:
    """Return the strategy for a TPU, or else for the GPUs or the CPU of this machine; see `start`."""
    if tpu:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ.get("TPU_NAME", "local"))
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except tf.errors.NotFoundError as error:
            raise UserError(
                "TensorFlow cannot use the TPU that the run requests, or that TPU_NAME or TPU_ACCELERATOR_TYPE names "
                f"({str(error).split('.')[0]}); use the environment tpu-tensorflow."
            ) from None
        return tf.distribute.TPUStrategy(resolver)
    if tf.config.list_physical_devices("GPU"):
        tf.config.experimental.enable_op_determinism()  # otherwise scatters, as in an embedding's gradient, differ
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    if tf.config.list_physical_devices("GPU") or host_device_count == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * host_device_count)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(host_device_count)])


def device_kind() -> str:
    """Return the kind of the training devices: TPU, GPU or CPU."""
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return next(kind for kind in ("TPU", "GPU", "CPU") if kind in kinds)


def device_name(requested: str) -> str:
    """Return JAX's name of the training devices, such as TPU v3 or CPU; requested  the accelerator of the run."""
    # TensorFlow has no versions of TPUs. v2 and v3 are the same PCI device: `requested` decides between them.
    if device_kind() == "TPU":
        return tpu_name(tpu_versions(), requested)
    if device_kind() == "CPU":
        return "CPU"
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    return details.get("device_name", "GPU")


def graph(function: Callable, xla: bool = True) -> Callable:
    """Return a function as a TensorFlow graph, compiled by XLA if `xla` is true and there is a GPU.

    On a CPU, the kernels of TensorFlow and oneDNN are faster than those of XLA, and nothing is compiled. There is no
    AutoGraph, which takes longer to rewrite a model of transformers, which needs none, than tracing it does.
    """
    plain = tf.autograph.experimental.do_not_convert(function)
    return tf.function(plain, autograph=False, jit_compile=(xla and device_kind() == "GPU") or None)


def is_single_device(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a strategy has one device, not of a TPU, so that a step compiles as a whole."""
    return strategy.num_replicas_in_sync == 1 and not isinstance(strategy, tf.distribute.TPUStrategy)

"""Masked language models with transformers and TensorFlow: model, strategy, training step, evaluation.

Import this module only where a model is trained or run: TensorFlow takes seconds to import.
"""

import os
from pathlib import Path

from lib.compiled import tensorflow_flags

os.environ["TF_XLA_FLAGS"] = tensorflow_flags(os.environ.get("TF_XLA_FLAGS", ""))
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # transformers' TensorFlow models are Keras 2
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import tf_keras
from transformers import AutoConfig, PretrainedConfig, TFAutoModelForMaskedLM, TFPreTrainedModel
from transformers.modeling_tf_pytorch_utils import load_pytorch_state_dict_in_tf2_model

from lib.arrays import load_arrays
from lib.errors import UserError
from lib.history import held_out_figures
from lib.mlm_data import evaluation_batches
from lib.tfrecord import Records

NOT_DECAYED = ["bias", "LayerNorm", "layer_norm", "layernorm"]  # searched for in the names of variables
# Architectures whose head may be given the hidden states of just the masked positions.
HEAD_BY_POSITION = {"bert", "camembert", "roberta", "xlm-roberta"}


def set_up(cpu_threads: int, cpu_devices: int, tpu: bool = True) -> tf.distribute.Strategy:
    """Return the strategy for the devices that are there: a TPU, several GPUs, logical CPUs, or one device.

    tpu  whether to take a TPU: what only runs a model does it beside one, with any TensorFlow

    Raises UserError where the environment names a TPU that this TensorFlow cannot use.
    Dropout follows explicit generators from here on, which `train_step` sets by the step.
    """
    tf.config.threading.set_intra_op_parallelism_threads(cpu_threads)
    tf.config.threading.set_inter_op_parallelism_threads(cpu_threads)
    tf_keras.backend.experimental.enable_tf_random_generator()
    if tpu and ("TPU_NAME" in os.environ or "TPU_ACCELERATOR_TYPE" in os.environ):
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ.get("TPU_NAME", "local"))
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except tf.errors.NotFoundError as error:
            raise UserError(
                "TensorFlow cannot use the TPU that TPU_NAME or TPU_ACCELERATOR_TYPE names "
                f"({str(error).split('.')[0]}); the environment tpu-tensorflow has one that can."
            ) from None
        return tf.distribute.TPUStrategy(resolver)
    if tf.config.list_physical_devices("GPU"):
        tf.config.experimental.enable_op_determinism()  # otherwise scatters, as in an embedding's gradient, differ
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    if tf.config.list_physical_devices("GPU") or cpu_devices == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * cpu_devices)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(cpu_devices)])


def device_kind() -> str:
    """Return what a model is trained on: TPU, GPU or CPU."""
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return next(kind for kind in ("TPU", "GPU", "CPU") if kind in kinds)


def build_model(config: PretrainedConfig, seed: int) -> TFPreTrainedModel:
    """Return a built model with fresh weights that depend on `seed` only. Call under a strategy's scope."""
    tf_keras.utils.set_random_seed(seed)
    return construct(config)


def construct(config: PretrainedConfig) -> TFPreTrainedModel:
    """Return a built model whose positions start after the pad id of `config`.

    transformers' TensorFlow models of the RoBERTa family take the pad id for 1, whatever the
    config says; PyTorch's follow the config, and the same weights would give other logits.
    Raises UserError for values that give no model.
    """
    try:
        model = TFAutoModelForMaskedLM.from_config(config)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"no {config.model_type} model can be built with these values: {error}.") from error
    for layer in model._flatten_layers(recursive=True, include_self=False):
        if hasattr(layer, "padding_idx"):
            layer.padding_idx = config.pad_token_id
    model.build_in_name_scope()
    return model


def load_model(folder: Path) -> TFPreTrainedModel:
    """Return the model of a Hugging Face folder whose `model.safetensors` has PyTorch's names.

    `from_pretrained` of transformers 4.57 cannot: it walks over the open file (issue 40028 there),
    where a dictionary of arrays will do.
    """
    model = construct(AutoConfig.from_pretrained(folder))
    arrays = load_arrays(folder / "model.safetensors")
    return load_pytorch_state_dict_in_tf2_model(model, arrays, tf_inputs=False, allow_missing_keys=False)


def build_optimizer(model: TFPreTrainedModel, recipe: dict) -> tf_keras.optimizers.Optimizer:
    """Return AdamW (Loshchilov and Hutter 2019) for `model`; its rate is set step by step."""
    optimizer = tf_keras.optimizers.AdamW(
        learning_rate=0.0,
        weight_decay=recipe["weight_decay"],
        beta_1=recipe["beta_1"],
        beta_2=recipe["beta_2"],
        epsilon=recipe["epsilon"],
        jit_compile=False,
    )
    optimizer.exclude_from_weight_decay(var_names=NOT_DECAYED)
    optimizer.build(model.trainable_variables)
    return optimizer


def generators(model: TFPreTrainedModel) -> list[tf.random.Generator]:
    """Return the random generators of a model's dropout layers, made now where they were to be made at first use."""
    layers = model._flatten_layers(recursive=True, include_self=False)
    sources = [layer._random_generator for layer in layers if hasattr(layer, "_random_generator")]
    for source in sources:
        source._maybe_init()
    return [source._generator for source in sources if source._generator is not None]


def variables(items: list) -> dict[str, np.ndarray]:
    """Return variables as named arrays; a number keeps equal names apart."""
    named: dict[str, np.ndarray] = {}
    for item in items:
        name = item.name if item.name not in named else f"{item.name}#{len(named)}"
        named[name] = item.numpy()
    return named


def assign(items: list, arrays: dict[str, np.ndarray], path: str) -> None:
    """Put named arrays back into variables. Raises UserError when `path` holds another model's."""
    names = list(variables(items))
    if set(arrays) != set(names):
        raise UserError(f"{path} holds other variables than the model of the config has; delete it and run again.")
    for name, item in zip(names, items, strict=True):
        if tuple(item.shape) != arrays[name].shape:
            raise UserError(f"{path}: {name} has shape {arrays[name].shape}; the config says {tuple(item.shape)}.")
        item.assign(arrays[name])


def predictions(model: TFPreTrainedModel, batch: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
    """Return the logits at a batch's masked positions, float32 [records, predictions, vocabulary].

    Where the architecture allows it, the head is computed there only and not at all positions:
    for a small model it is most of the work.
    """
    inputs = {"input_ids": batch["input_ids"], "attention_mask": tf.ones_like(batch["input_ids"])}
    if model.config.model_type in HEAD_BY_POSITION:
        hidden = getattr(model, model.base_model_prefix)(**inputs, training=training)[0]
        chosen = tf.gather(hidden, batch["positions"], batch_dims=1)
        logits = model.get_lm_head()(chosen)
    else:
        logits = tf.gather(model(inputs, training=training).logits, batch["positions"], batch_dims=1)
    return tf.cast(logits, tf.float32)


def loss_sum(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the summed cross-entropy of a batch's predictions, nats."""
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], logits) * batch["weights"])


class Trainer:
    """A model, its optimizer and the compiled step, under one strategy."""

    def __init__(self, strategy: tf.distribute.Strategy, config: PretrainedConfig, recipe: dict):
        """Build model and optimizer with fresh weights.

        recipe  seed, precision, optimizer
        """
        self.strategy, self.seed = strategy, recipe["seed"]
        tf_keras.mixed_precision.set_global_policy(recipe["precision"])
        with strategy.scope():
            self.model = build_model(config, recipe["seed"])
            self.optimizer = build_optimizer(self.model, recipe["optimizer"])
            self.dropouts = generators(self.model)
        self.clip_norm = recipe["optimizer"]["clip_norm"]
        # Where replicas have to talk within a step, only what each does alone is compiled by XLA.
        self.mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
        gradients = tf.function(self.gradients, jit_compile=True) if self.mirrored else self.gradients

        def step(batch, rate, number):
            """Run one step on every replica; return the loss per prediction over all of them."""
            replica = tf.distribute.get_replica_context()
            batch = dict(batch, replica=tf.cast(replica.replica_id_in_sync_group, tf.int64))
            loss, weight, grads = gradients(batch, number)
            loss, weight, grads = replica.all_reduce(tf.distribute.ReduceOp.SUM, [loss, weight, grads])
            weight = tf.maximum(weight, 1.0)  # a small batch may have nothing to predict
            grads = [gradient / weight for gradient in grads]
            if self.clip_norm is not None:
                grads, _ = tf.clip_by_global_norm(grads, self.clip_norm)
            self.optimizer.learning_rate.assign(rate)
            self.optimizer.apply_gradients(
                zip(grads, self.model.trainable_variables, strict=True), skip_gradients_aggregation=True
            )
            return loss / weight

        if alone(strategy):
            self.step = tf.function(step, jit_compile=True)
        else:

            @tf.function
            def distributed(batch, rate, number):
                losses = strategy.run(step, (batch, rate, number))
                return strategy.experimental_local_results(losses)[0]

            self.step = distributed

    def gradients(self, batch: dict[str, tf.Tensor], number: tf.Tensor) -> tuple:
        """Return this replica's summed loss, its number of predictions, and the gradients of the sum."""
        for index, dropout in enumerate(self.dropouts):
            # Philox state: a counter of 128 bits and a key. Dropout, too, is a function of seed and step.
            key = self.seed * 1_000_003 + index + batch["replica"] * 100_003
            dropout.state.assign(tf.stack([tf.zeros((), tf.int64), number, key]))
        with tf.GradientTape() as tape:
            loss = loss_sum(predictions(self.model, batch, training=True), batch)
        grads = tape.gradient(loss, self.model.trainable_variables, unconnected_gradients="zero")
        grads = [tf.convert_to_tensor(gradient) for gradient in grads]  # embeddings give sparse ones
        return loss, tf.reduce_sum(batch["weights"]), grads

    def weights(self) -> dict[str, np.ndarray]:
        """Return the model's variables as arrays."""
        return variables(self.model.weights)

    def optimizer_state(self) -> dict[str, np.ndarray]:
        """Return the optimizer's variables as arrays."""
        return variables(self.optimizer.variables)

    def load(self, checkpoint: dict[str, str]) -> None:
        """Continue from a checkpoint, its parts given by their paths."""
        assign(self.model.weights, load_arrays(checkpoint["weights"]), checkpoint["weights"])
        assign(self.optimizer.variables, load_arrays(checkpoint["optimizer"]), checkpoint["optimizer"])


def batches(strategy: tf.distribute.Strategy, load, batch_size: int, first: int, last: int):
    """Return an iterable over the global batches of steps `first` to `last`, each split over the replicas.

    load  function of the step (an int) that returns a dict of arrays, made ahead of their use
    """
    example = load(first)
    names = sorted(example)

    def fetch(step):
        arrays = tf.numpy_function(
            lambda number: [load(int(number))[name] for name in names], [step], [example[n].dtype for n in names]
        )
        for array, name in zip(arrays, names, strict=True):
            array.set_shape([batch_size, *example[name].shape[1:]])
        return dict(zip(names, arrays, strict=True))

    dataset = tf.data.Dataset.range(first, last).map(fetch, num_parallel_calls=1, deterministic=True)
    dataset = dataset.prefetch(4)
    if alone(strategy):
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return strategy.experimental_distribute_dataset(dataset.with_options(options))


def alone(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a strategy is one device without a TPU's runtime, so that a step compiles as a whole."""
    return strategy.num_replicas_in_sync == 1 and not isinstance(strategy, tf.distribute.TPUStrategy)


def evaluate(
    model: TFPreTrainedModel, records: Records, strategy: tf.distribute.Strategy | None = None
) -> dict[str, float]:
    """Return the figures of `held_out_figures` of a split, for its masked tokens."""
    strategy = strategy or tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync

    def measure(batch):
        logits = predictions(model, batch, training=False)
        right = tf.cast(tf.argmax(logits, -1, tf.int32) == batch["labels"], tf.float32) * batch["weights"]
        return tf.stack([loss_sum(logits, batch), tf.reduce_sum(right), tf.reduce_sum(batch["weights"])])

    @tf.function
    def distributed(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(measure, (batch,)), axis=None)

    def spread(array):
        """Split an array's rows over the replicas; rows of zeros, which weigh nothing, make them equal in number."""
        array = np.pad(array, [(0, -len(array) % replicas)] + [(0, 0)] * (array.ndim - 1))
        parts = np.split(array, replicas)
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    one = tf.function(measure, jit_compile=True)
    run, place = (one, tf.constant) if alone(strategy) else (distributed, spread)
    totals = np.zeros(3)
    for batch in evaluation_batches(records):
        totals += run({name: place(array) for name, array in batch.items()}).numpy()
    return held_out_figures(*totals)

"""Compute the loss of each token: cross-entropy over the vocabulary, in chunks of it if it is large.

In chunks, a device never holds the logits of a token for more than `CHUNK` entries of the vocabulary: it sums their
exponentials chunk by chunk (Milakov and Gimelshein 2018). If the table is frozen, it sums the gradients by the hidden
states with them, as FlashAttention (Dao et al. 2022) sums values; if the table is trained, it computes the logits of a
chunk again in the backward pass, for both gradients.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax.sharding import Mesh, PartitionSpec

from tpulm.models.sharding import Sharded

CHUNK = 32_768  # entries of the vocabulary; a device that holds no more of them has one chunk
SMALLEST = CHUNK // 8  # a vocabulary that divides only into smaller chunks stays whole


class Head(NamedTuple):
    """The last layer of a causal model: a table of embeddings, read in reverse.

    variable  the table, [vocabulary, hidden]; untied  whether it is [hidden, vocabulary], apart from the embeddings
    trained   whether it is trained
    dtype     of the multiplication
    soft_cap  c of c tanh(logit / c); None is none
    chunks    of a device's rows of the table; with 1, all logits are computed at once
    axes      of the mesh, over which rows and columns are sharded; mesh  None without one
    """

    variable: keras.Variable
    untied: bool
    trained: bool
    dtype: str
    soft_cap: float | None
    chunks: int
    axes: tuple
    mesh: Mesh | None


def token_losses(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the cross-entropy of each token in nats, float32 of the labels' shape.

    logits  float [..., vocabulary]; labels  int32 [...]
    """
    logits = logits.astype("float32")
    return jax.nn.logsumexp(logits, -1) - of_labels(logits, labels)


def of_labels(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the logit of each token's label, of the labels' shape."""
    # No gather: over a vocabulary that is sharded, it would fetch the logits from all devices.
    places = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    return jnp.where(places == labels[..., None], logits, 0.0).sum(-1)


def first_likeliest(logits: jax.Array) -> jax.Array:
    """Return the likeliest id of each token, the first of equals, int32 [...]; logits  float [..., vocabulary].

    XLA neither vectorizes its own argmax on CPUs nor shares it with the maximum that the loss needs.
    """
    logits = jax.lax.stop_gradient(logits)
    places = jax.lax.broadcasted_iota("int32", logits.shape, logits.ndim - 1)
    return jnp.where(logits == logits.max(-1, keepdims=True), places, logits.shape[-1]).min(-1)


def normalizer_penalty(logits: jax.Array) -> jax.Array:
    """Return the z-loss (Chowdhery et al. 2022, section 5) of logits [..., vocabulary]: the squared logsumexp."""
    # It keeps the logits near 0, where bfloat16 is exact.
    return jnp.square(jax.nn.logsumexp(logits.astype("float32"), -1))


def losses_and_correct(
    model: keras.Model,
    trainable: list,
    frozen: list,
    inputs: dict[str, jax.Array],
    labels: jax.Array,
    training: bool,
    z_loss: float = 0.0,
) -> tuple[jax.Array, jax.Array, list]:
    """Return the loss of each token in nats, float32, whether it is predicted, bool, and the new frozen values.

    A token is predicted if its label is the first of the likeliest ids.

    trainable, frozen  values of the model's variables
    labels             int32, one per prediction; float32 for regression: the loss is the squared error, and a token is
                       predicted if its number is equal
    training           whether the model trains
    z_loss             weight of `normalizer_penalty` in the gradients; losses leave it out to stay comparable. It needs
                       a head that is not chunked
    """
    head = head_of(model)
    if head is None or head.chunks == 1:
        logits, changed = model.stateless_call(trainable, frozen, inputs, training=training)
        if jnp.issubdtype(labels.dtype, jnp.floating):
            numbers = logits[..., 0].astype("float32")
            return jnp.square(numbers - labels), numbers == labels, changed
        losses = token_losses(logits, labels)
        if z_loss:
            penalty = z_loss * normalizer_penalty(logits)
            losses += penalty - jax.lax.stop_gradient(penalty)
        return losses, first_likeliest(logits) == labels, changed
    if z_loss:
        raise ValueError("z_loss needs all logits of a token at once, which a chunked head does not compute")
    hidden, changed = model.backbone.stateless_call(trainable, frozen, inputs, training=training)
    values = zip([*model.trainable_variables, *model.non_trainable_variables], [*trainable, *frozen], strict=True)
    table = next(value for variable, value in values if variable is head.variable)
    losses, correct = chunked(hidden, table.T if head.untied else table, labels, head)
    return losses, correct, changed


def head_of(model: keras.Model) -> Head | None:
    """Return the head of a model if it is a plain table of embeddings on top of the backbone, else None."""
    layer = getattr(model.backbone, "token_embedding", None)
    if not isinstance(layer, keras.layers.ReversibleEmbedding) or not isinstance(model.output, keras.KerasTensor):
        return None
    last = model.operations[-1] is layer
    same_variables = all(
        [id(variable) for variable in of_model] == [id(variable) for variable in of_backbone]
        for of_model, of_backbone in (
            (model.trainable_variables, model.backbone.trainable_variables),
            (model.non_trainable_variables, model.backbone.non_trainable_variables),
        )
    )
    if not last or not same_variables or layer.lora_enabled or layer.quantization_mode:
        return None
    variable = layer.embeddings if layer.tie_weights else layer.reverse_embeddings
    distribution, axes, mesh = keras.distribution.distribution(), (None, None), None
    if isinstance(distribution, Sharded):
        axes, mesh = distribution.expected(variable.path, variable.shape), distribution.device_mesh.backend_mesh
    axes = axes if layer.tie_weights else axes[::-1]
    over_rows = mesh.shape[axes[0]] if mesh is not None and axes[0] else 1
    # Devices along the axis batch have different tokens, so that sums over rows sharded by it would mix them.
    whole = axes[0] == "batch" and over_rows > 1
    chunks = 1 if whole else chunks_of(variable.shape[0 if layer.tie_weights else 1] // over_rows)
    dtype = layer.reverse_dtype or layer.compute_dtype
    trained = any(variable is trainable for trainable in model.trainable_variables)
    return Head(variable, not layer.tie_weights, trained, dtype, layer.logit_soft_cap, chunks, axes, mesh)


def chunks_of(rows: int) -> int:
    """Return the number of equal chunks of a device's rows: of at most `CHUNK`, at least `SMALLEST` rows, else 1."""
    fitting = (count for count in range(1, rows // SMALLEST + 1) if rows % count == 0 and rows // count <= CHUNK)
    return next(fitting, 1)


def chunked(hidden: jax.Array, table: jax.Array, labels: jax.Array, head: Head) -> tuple[jax.Array, jax.Array]:
    """Return the loss of each token and whether it is predicted, as `losses_and_correct`, for `hidden @ table.T`.

    The gradients have the dtypes of hidden and table, and exist to first order in reverse mode only.

    hidden  float [records, tokens, hidden]; table  float [vocabulary, hidden]; labels  int32 [records, tokens]
    """
    mesh = head.mesh
    if mesh is None or mesh.size == 1:
        mesh, head, batch = None, head._replace(axes=(None, None)), None
    else:
        batch = "batch" if hidden.shape[0] % mesh.shape["batch"] == 0 else None
    of_tokens, of_hidden = PartitionSpec(batch, None), PartitionSpec(batch, None, None)
    inputs = of_hidden, PartitionSpec(*head.axes), of_tokens

    def on_mesh(function: Callable, inputs: tuple, outputs: tuple | PartitionSpec) -> Callable:
        """Return a function of the whole arrays, each device with its records and its part of the table."""
        if mesh is None:
            return function
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def sums(hidden: jax.Array, table: jax.Array, labels: jax.Array, gradients: bool) -> tuple:
        function = partial(sums_on_device, head=head, gradients=gradients)
        outputs = (of_tokens, of_tokens, of_tokens, *([of_hidden] if gradients else []))
        return on_mesh(function, inputs, outputs)(hidden, table, labels)

    @jax.custom_vjp
    def losses(hidden: jax.Array, table: jax.Array, labels: jax.Array) -> tuple:
        return sums(hidden, table, labels, gradients=False)[:2]

    def forward(hidden: jax.Array, table: jax.Array, labels: jax.Array) -> tuple:
        loss, correct, *residuals = sums(hidden, table, labels, gradients=not head.trained)
        return (loss, correct), (hidden, table, labels, *residuals)

    def backward(residuals: tuple, cotangents: tuple) -> tuple:
        hidden, table, labels, normalizers, *by_hidden = residuals
        scales = cotangents[0]
        if by_hidden:
            return (scales[..., None] * by_hidden[0]).astype(hidden.dtype), jnp.zeros_like(table), None
        summed = {batch, head.axes[1]} - {None}
        function = on_mesh(
            partial(gradients_on_device, head=head, summed=summed, batch=batch),
            (*inputs, of_tokens, of_tokens),
            (of_hidden, inputs[1]),
        )
        of_states, of_table = function(hidden, table, labels, normalizers, scales)
        return of_states.astype(hidden.dtype), of_table.astype(table.dtype), None

    losses.defvjp(forward, backward)
    return losses(hidden, table, labels)


def chunks_on_device(table: jax.Array, head: Head) -> tuple[jax.Array, jax.Array]:
    """Return the chunks of a device's part of the table: first ids, int32 [chunks]; rows, [chunks, rows, hidden]."""
    count = table.shape[0] // head.chunks
    start = jax.lax.axis_index(head.axes[0]) * table.shape[0] if head.axes[0] else 0
    return start + count * jnp.arange(head.chunks, dtype="int32"), table.reshape(head.chunks, count, -1)


def logits_of(hidden: jax.Array, chunk: jax.Array, head: Head) -> tuple[jax.Array, jax.Array]:
    """Return the logits of a chunk, float32 [records, tokens, rows], and the chunk as multiplied, [rows, hidden]."""
    chunk = chunk.astype(head.dtype)
    if head.axes[1]:
        chunk = jax.lax.all_gather(chunk, head.axes[1], axis=1, tiled=True)
    logits = jnp.einsum("bth,vh->btv", hidden.astype(head.dtype), chunk, preferred_element_type="float32")
    return logits if head.soft_cap is None else jnp.tanh(logits / head.soft_cap) * head.soft_cap, chunk


def before_cap(gradients: jax.Array, logits: jax.Array, head: Head) -> jax.Array:
    """Return the gradients by the logits before the soft cap from those by the logits after it."""
    return gradients if head.soft_cap is None else gradients * (1 - jnp.square(logits / head.soft_cap))


def sums_on_device(
    hidden: jax.Array, table: jax.Array, labels: jax.Array, head: Head, gradients: bool = False
) -> tuple[jax.Array, ...]:
    """Return losses, correctness and normalizers of a device's tokens; with `gradients` also those by hidden states."""
    none = jnp.zeros(labels.shape, "float32")
    before = Sums(
        highest=jnp.full(labels.shape, -jnp.inf, "float32"),
        total=none,
        chosen=none,
        guess=jnp.zeros(labels.shape, "int32"),
        others=jnp.zeros(hidden.shape, "float32") if gradients else None,
        label=jnp.zeros(hidden.shape, head.dtype) if gradients else None,
    )

    def add_chunk(sums: Sums, part: tuple) -> tuple:
        first, chunk = part
        logits, chunk = logits_of(hidden, chunk, head)
        return sums.add(logits, labels, first, chunk, head), None

    sums, _ = jax.lax.scan(add_chunk, before, chunks_on_device(table, head))
    axis = head.axes[0]
    if axis:
        sums = sums.over_devices(axis)
    correct = sums.guess == labels
    normalizers = sums.highest + jnp.log(sums.total)
    if sums.others is None or sums.label is None:
        return normalizers - sums.chosen, correct, normalizers
    # The label's gradient is its probability - 1: near 0, the difference of two terms would be all rounding.
    less = before_cap(jnp.expm1(sums.chosen - normalizers), sums.chosen, head)
    by_hidden = sums.others / sums.total[..., None] + less[..., None] * sums.label
    return normalizers - sums.chosen, correct, normalizers, jax.lax.psum(by_hidden, axis) if axis else by_hidden


def gradients_on_device(
    hidden: jax.Array,
    table: jax.Array,
    labels: jax.Array,
    normalizers: jax.Array,
    scales: jax.Array,
    head: Head,
    summed: set[str],
    batch: str | None,
) -> tuple[jax.Array, jax.Array]:
    """Return the float32 gradients of the scaled losses by a device's hidden states and by its part of the table."""
    # The gradients by the table add up over the axes `summed`. Devices that have the same tokens each give a share.
    copies = math.prod(jax.lax.axis_size(axis) for axis in summed if axis != batch)

    def of_chunk(by_hidden: jax.Array, part: tuple) -> tuple:
        first, chunk = part
        logits, chunk = logits_of(hidden, chunk, head)
        at_label = first + jax.lax.broadcasted_iota("int32", logits.shape, 2) == labels[..., None]
        shares = jnp.exp(logits - normalizers[..., None])
        by_logits = (before_cap(shares - at_label, logits, head) * scales[..., None]).astype(head.dtype)
        by_hidden += jnp.einsum("btv,vh->bth", by_logits, chunk, preferred_element_type="float32")
        operands = by_logits, hidden.astype(head.dtype)
        by_chunk = jnp.einsum("btv,bth->vh", *operands, preferred_element_type="float32") / copies
        if head.axes[1]:
            by_chunk = jax.lax.psum_scatter(by_chunk, head.axes[1], scatter_dimension=1, tiled=True)
        return by_hidden, by_chunk

    by_hidden, by_table = jax.lax.scan(of_chunk, jnp.zeros(hidden.shape, "float32"), chunks_on_device(table, head))
    by_table = by_table.reshape(table.shape)
    if rest := tuple(summed - {head.axes[1]}):
        by_table = jax.lax.psum(by_table, rest)
    return jax.lax.psum(by_hidden, head.axes[0]) if head.axes[0] else by_hidden, by_table


class Sums(NamedTuple):
    """Running sums over each token's logits after some chunks of the vocabulary; [records, tokens].

    highest  float32, the largest of them
    total    float32, the sum of e to the power of each minus the highest
    chosen   float32, that of the label, 0 before its chunk
    guess    int32, the id of the first that is the highest
    others   float32 [records, tokens, hidden], the sum of the rows of the table but that of the label, each times its
             term of the total and the derivative of the soft cap
    label    [records, tokens, hidden], the row of the label, 0 before its chunk; both None without gradients
    """

    highest: jax.Array
    total: jax.Array
    chosen: jax.Array
    guess: jax.Array
    others: jax.Array | None
    label: jax.Array | None

    def add(self, logits: jax.Array, labels: jax.Array, first: jax.Array, chunk: jax.Array, head: Head) -> "Sums":
        """Return the sums after another chunk.

        logits  float32 [records, tokens, rows], of the ids from `first` on; chunk  [rows, hidden], see `logits_of`
        """
        top = logits.max(-1)
        highest = jnp.maximum(self.highest, top)
        before, terms = jnp.exp(self.highest - highest), jnp.exp(logits - highest[..., None])
        at_label = first + jax.lax.broadcasted_iota("int32", logits.shape, 2) == labels[..., None]
        chosen = self.chosen + jnp.where(at_label, logits, 0.0).sum(-1)
        others, label = self.others, self.label
        guess = jnp.where(top > self.highest, first + first_likeliest(logits), self.guess)
        if others is not None and label is not None:
            pulls = before_cap(jnp.where(at_label, 0.0, terms), logits, head).astype(head.dtype)
            more = jnp.einsum("btv,vh->bth", pulls, chunk, preferred_element_type="float32")
            others = others * before[..., None] + more
            place = labels - first
            here = (place >= 0) & (place < chunk.shape[0])
            label = jnp.where(here[..., None], jnp.take(chunk, place, axis=0, mode="clip"), label)
        return Sums(highest, self.total * before + terms.sum(-1), chosen, guess, others, label)

    def over_devices(self, axis: str) -> "Sums":
        """Return the sums over a mesh axis whose devices have different ids; `others` and `label` are not summed."""
        highest = jax.lax.pmax(self.highest, axis)
        before = jnp.exp(self.highest - highest)
        total, chosen = jax.lax.psum((self.total * before, self.chosen), axis)
        others = self.others
        guess = jax.lax.pmin(jnp.where(self.highest == highest, self.guess, jnp.iinfo("int32").max), axis)
        if others is not None:
            others = others * before[..., None]
        return Sums(highest, total, chosen, guess, others, self.label)

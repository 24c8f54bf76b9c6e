"""The loss of each token: cross-entropy over the vocabulary, in chunks of it where it is large.

In chunks, a device never holds the logits of a token for more than `CHUNK` entries of the vocabulary: it sums their
exponentials as it goes (Milakov and Gimelshein 2018) and with them, where the model trains, the gradients by the hidden
states, as FlashAttention (Dao et al. 2022) sums values. Only those by the table need the logits of a chunk again.
Needs tpulm.training.runtime.start first.
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

CHUNK = 32_768  # entries of the vocabulary: a device that holds no more of them has them in one piece
SMALLEST = CHUNK // 8  # a vocabulary that divides only into smaller pieces stays whole


class Head(NamedTuple):
    """The last layer of a causal model: a table of embeddings, read in reverse.

    variable  the table, [vocabulary, hidden]; untied  whether it is [hidden, vocabulary], apart from the embeddings
    dtype     of the multiplication
    soft_cap  c of c tanh(logit / c); None is none
    chunks    that a device goes through its rows of the table in
    axes      of the mesh, over which rows and columns are sharded; mesh  None without one
    """

    variable: keras.Variable
    untied: bool
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


def label_has_top_logit(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return whether no id is likelier than the label of a token, bool of the labels' shape.

    It costs a step next to nothing: the loss has the highest logit and that of the label already.
    """
    logits = jax.lax.stop_gradient(logits.astype("float32"))
    return of_labels(logits, labels) >= logits.max(-1)


def normalizer_penalty(logits: jax.Array) -> jax.Array:
    """Return z-loss (Chowdhery et al. 2022, section 5) of each token: the squared logarithm of the softmax's divisor.

    logits  float [..., vocabulary]. It keeps them near 0, where bfloat16 is exact
    """
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
    """Return the loss of each token in nats, float32, whether it is predicted, bool, and the frozen values that follow.

    A token is predicted where its label is the first of the likeliest ids; while the model trains, where none is
    likelier.

    trainable, frozen  values of the model's variables
    labels             int32, of the shape of what the model predicts; float32 where that is numbers: then the loss is
                       the squared error, and predicted is what is the very number
    training           whether the model trains
    z_loss             weight of `normalizer_penalty`: in the gradients of a loss, not in its value, which stays
                       comparable; for models whose head is not chunked
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
        return losses, label_has_top_logit(logits, labels) if training else logits.argmax(-1) == labels, changed
    hidden, changed = model.backbone.stateless_call(trainable, frozen, inputs, training=training)
    values = zip([*model.trainable_variables, *model.non_trainable_variables], [*trainable, *frozen], strict=True)
    table = next(value for variable, value in values if variable is head.variable)
    losses, correct = chunked(hidden, table.T if head.untied else table, labels, head, not training)
    return losses, correct, changed


def head_of(model: keras.Model) -> Head | None:
    """Return the last layer of a model where it is a plain table of embeddings on top of the backbone, else None."""
    layer = getattr(model.backbone, "token_embedding", None)
    if not isinstance(layer, keras.layers.ReversibleEmbedding) or not isinstance(model.output, keras.KerasTensor):
        return None
    last = model.operations[-1] is layer
    same = all(
        [id(variable) for variable in ours] == [id(variable) for variable in theirs]
        for ours, theirs in (
            (model.trainable_variables, model.backbone.trainable_variables),
            (model.non_trainable_variables, model.backbone.non_trainable_variables),
        )
    )
    if not last or not same or layer.lora_enabled or layer.quantization_mode:
        return None
    variable = layer.embeddings if layer.tie_weights else layer.reverse_embeddings
    distribution, axes, mesh = keras.distribution.distribution(), (None, None), None
    if isinstance(distribution, Sharded):
        axes, mesh = distribution.expected(variable.path, variable.shape), distribution.device_mesh.backend_mesh
    axes = axes if layer.tie_weights else axes[::-1]
    rows = variable.shape[0 if layer.tie_weights else 1]
    if mesh is not None and axes[0]:
        rows //= mesh.shape[axes[0]]
    chunks = 1 if axes[0] == "batch" else chunks_of(rows)  # devices of that axis have other tokens, too
    dtype = layer.reverse_dtype or layer.compute_dtype
    return Head(variable, not layer.tie_weights, dtype, layer.logit_soft_cap, chunks, axes, mesh)


def chunks_of(rows: int) -> int:
    """Return in how many equal chunks of `CHUNK` at most a device goes through its rows of the table.

    One where no number of chunks of `SMALLEST` or more divides them.
    """
    fitting = (count for count in range(1, rows // SMALLEST + 1) if rows % count == 0 and rows // count <= CHUNK)
    return next(fitting, 1)


def chunked(
    hidden: jax.Array, table: jax.Array, labels: jax.Array, head: Head, guess: bool
) -> tuple[jax.Array, jax.Array]:
    """Return loss of each token and whether it is predicted, as `losses_and_correct` does of `hidden @ table.T`.

    guess  whether the first of the likeliest ids is asked for, and not only whether one is likelier than the label
    hidden  [records, tokens, hidden]; table  [vocabulary, hidden]; labels  int32 [records, tokens]
    """
    mesh = head.mesh
    if mesh is None or mesh.size == 1:
        mesh, head, batch = None, head._replace(axes=(None, None)), None
    else:
        batch = "batch" if hidden.shape[0] % mesh.shape["batch"] == 0 else None
    of_token, of_hidden, of_table = (
        PartitionSpec(batch, None), PartitionSpec(batch, None, None), PartitionSpec(*head.axes)
    )  # fmt: skip
    inputs = of_hidden, of_table, of_token

    def on_mesh(function: Callable, inputs: tuple, outputs: tuple | PartitionSpec) -> Callable:
        """Return a function of the whole arrays, each device with its records and its part of the table."""
        if mesh is None:
            return function
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    @jax.custom_vjp
    def losses(hidden: jax.Array, table: jax.Array, labels: jax.Array) -> tuple:
        sums = on_mesh(partial(sums_of, head=head, guess=guess), inputs, (of_token, of_token))
        return sums(hidden, table, labels)

    def forward(hidden: jax.Array, table: jax.Array, labels: jax.Array) -> tuple:
        outputs = (of_token, of_token, of_token, of_hidden)
        sums = on_mesh(partial(sums_of, head=head, guess=guess, gradients=True), inputs, outputs)
        loss, correct, normalizers, gradients = sums(hidden, table, labels)
        return (loss, correct), (hidden, table, labels, normalizers, gradients)

    def backward(kept: tuple, cotangents: tuple) -> tuple:
        *arrays, normalizers, gradients = kept
        scales = cotangents[0]
        # Of those that add up, devices with the same tokens each give their share.
        summed = {"batch", head.axes[1]} - {None} if mesh else set()
        copies = math.prod(mesh.shape[axis] for axis in summed if axis != batch) if mesh else 1
        of_rows = on_mesh(partial(table_gradients, head=head, summed=summed), (*inputs, of_token, of_token), of_table)
        rows = of_rows(*arrays, normalizers, scales / copies)
        return (scales[..., None] * gradients).astype(arrays[0].dtype), rows.astype(arrays[1].dtype), None

    losses.defvjp(forward, backward)
    return losses(hidden, table, labels)


def chunks_on_device(table: jax.Array, head: Head) -> tuple[jax.Array, jax.Array]:
    """Return first ids and rows of the chunks of a device's part of the table: [chunks], [chunks, rows, hidden]."""
    rows = table.shape[0] // head.chunks
    start = jax.lax.axis_index(head.axes[0]) * table.shape[0] if head.axes[0] else 0
    return start + rows * jnp.arange(head.chunks, dtype="int32"), table.reshape(head.chunks, rows, -1)


def logits_of(hidden: jax.Array, rows: jax.Array, head: Head) -> tuple[jax.Array, jax.Array]:
    """Return the logits of a chunk, float32 [records, tokens, rows], and its rows over the whole width."""
    rows = rows.astype(head.dtype)
    if head.axes[1]:
        rows = jax.lax.all_gather(rows, head.axes[1], axis=1, tiled=True)
    logits = jnp.einsum("bth,vh->btv", hidden.astype(head.dtype), rows, preferred_element_type="float32")
    return logits if head.soft_cap is None else jnp.tanh(logits / head.soft_cap) * head.soft_cap, rows


def uncapped(gradients: jax.Array, logits: jax.Array, head: Head) -> jax.Array:
    """Return gradients by the logits before the soft cap, of those by the logits after it."""
    return gradients if head.soft_cap is None else gradients * (1 - jnp.square(logits / head.soft_cap))


def sums_of(
    hidden: jax.Array, table: jax.Array, labels: jax.Array, head: Head, guess: bool, gradients: bool = False
) -> tuple[jax.Array, ...]:
    """Return what `chunked` does, by a device with its records and its part of the table.

    With gradients, also the logarithm of the softmax's divisor, and those of each token's loss by its hidden states.
    """
    none = jnp.zeros(labels.shape, "float32")
    before = Sums(
        highest=jnp.full(labels.shape, -jnp.inf, "float32"),
        total=none,
        chosen=none,
        guess=jnp.zeros(labels.shape, "int32") if guess else None,
        rows=(jnp.zeros(hidden.shape, "float32"),) * 2 if gradients else None,
    )

    def add_chunk(sums: Sums, chunk: tuple) -> tuple:
        first, rows = chunk
        logits, rows = logits_of(hidden, rows, head)
        return sums.add(logits, labels, first, rows, head), None

    sums, _ = jax.lax.scan(add_chunk, before, chunks_on_device(table, head))
    if head.axes[0]:
        sums = sums.over_devices(head.axes[0])
    correct = sums.chosen >= sums.highest if sums.guess is None else sums.guess == labels
    normalizers = sums.highest + jnp.log(sums.total)
    if sums.rows is None:
        return normalizers - sums.chosen, correct
    mean, of_label = sums.rows
    mean /= sums.total[..., None]
    return normalizers - sums.chosen, correct, normalizers, mean - uncapped(of_label, sums.chosen[..., None], head)


def table_gradients(
    hidden: jax.Array,
    table: jax.Array,
    labels: jax.Array,
    normalizers: jax.Array,
    scales: jax.Array,
    head: Head,
    summed: set[str],
) -> jax.Array:
    """Return the gradients of the scaled losses by a device's part of the table, float32.

    normalizers, scales  float32 [records, tokens]; summed  axes of the mesh over which they add up
    """

    def of_chunk(_: None, chunk: tuple) -> tuple:
        first, rows = chunk
        logits, _ = logits_of(hidden, rows, head)
        at_label = first + jax.lax.broadcasted_iota("int32", logits.shape, 2) == labels[..., None]
        by_logits = uncapped(jnp.exp(logits - normalizers[..., None]) - at_label, logits, head) * scales[..., None]
        operands = by_logits.astype(head.dtype), hidden.astype(head.dtype)
        found = jnp.einsum("btv,bth->vh", *operands, preferred_element_type="float32")
        if head.axes[1]:
            found = jax.lax.psum_scatter(found, head.axes[1], scatter_dimension=1, tiled=True)
        return None, found

    _, found = jax.lax.scan(of_chunk, None, chunks_on_device(table, head))
    found = found.reshape(table.shape)
    rest = tuple(summed - {head.axes[1]})
    return jax.lax.psum(found, rest) if rest else found


class Sums(NamedTuple):
    """What is known of each token's logits after some chunks of the vocabulary; float32 [records, tokens].

    highest  the largest of them
    total    the sum of e to the power of each minus the highest
    chosen   that of the label, 0 until it has come
    guess    int32, the id of the first that is the highest; None where nobody asks
    rows     of the table, [records, tokens, hidden]: the sum of all, each times its term of the total, and that of the
             label; None without gradients
    """

    highest: jax.Array
    total: jax.Array
    chosen: jax.Array
    guess: jax.Array | None
    rows: tuple[jax.Array, jax.Array] | None

    def add(self, logits: jax.Array, labels: jax.Array, first: jax.Array, rows: jax.Array, head: Head) -> "Sums":
        """Return the sums with another chunk: logits [records, tokens, rows] of the ids from `first` on."""
        top = logits.max(-1)
        highest = jnp.maximum(self.highest, top)
        before, terms = jnp.exp(self.highest - highest), jnp.exp(logits - highest[..., None])
        places = first + jax.lax.broadcasted_iota("int32", logits.shape, logits.ndim - 1)
        chosen = self.chosen + jnp.where(places == labels[..., None], logits, 0.0).sum(-1)
        guess, summed = self.guess, self.rows
        if guess is not None:
            guess = jnp.where(top > self.highest, first + logits.argmax(-1).astype("int32"), guess)
        if summed is not None:
            operands = uncapped(terms, logits, head).astype(head.dtype), rows
            more = jnp.einsum("btv,vh->bth", *operands, preferred_element_type="float32")
            here = (labels >= first) & (labels < first + rows.shape[0])
            of_label = jnp.where(here[..., None], jnp.take(rows, labels - first, axis=0, mode="clip"), 0)
            summed = (summed[0] * before[..., None] + more, summed[1] + of_label)
        return Sums(highest, self.total * before + terms.sum(-1), chosen, guess, summed)

    def over_devices(self, axis: str) -> "Sums":
        """Return the sums over the devices of an axis of the mesh, each of which has other ids."""
        highest = jax.lax.pmax(self.highest, axis)
        before = jnp.exp(self.highest - highest)
        total, chosen = jax.lax.psum((self.total * before, self.chosen), axis)
        guess, rows = self.guess, self.rows
        if guess is not None:
            guess = jax.lax.pmin(jnp.where(self.highest == highest, guess, jnp.iinfo("int32").max), axis)
        if rows is not None:
            rows = jax.lax.psum((rows[0] * before[..., None], rows[1]), axis)
        return Sums(highest, total, chosen, guess, rows)

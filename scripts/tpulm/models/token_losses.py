"""The loss of each token: cross-entropy over the vocabulary, in chunks of it where it is large.

In chunks, a device never holds the logits of a token for more than `CHUNK` entries of the vocabulary: it sums their
exponentials as it goes (Milakov and Gimelshein 2018), and computes the logits of a chunk again in the backward pass.
Needs tpulm.training.runtime.start first.
"""

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
    chunks = chunks_of(rows // mesh.shape[axes[0]] if mesh is not None and axes[0] else rows)
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
    """Return loss of each token and whether it is predicted, as `predict` does of the logits `hidden @ table.T`.

    guess  whether the first of the likeliest ids is asked for, and not only whether one is likelier than the label
    hidden  [records, tokens, hidden]; table  [vocabulary, hidden]; labels  int32 [records, tokens]
    """
    # Gradients of all chunks add up in it.
    hidden = hidden.astype("float32")
    mesh = head.mesh
    if mesh is None or mesh.size == 1:
        return of_device(hidden, table, labels, head=head._replace(axes=(None, None)), guess=guess)
    batch = "batch" if hidden.shape[0] % mesh.shape["batch"] == 0 else None
    of_token = PartitionSpec(batch, None)
    run = jax.shard_map(
        partial(of_device, head=head, guess=guess),
        mesh=mesh,
        in_specs=(PartitionSpec(batch, None, None), PartitionSpec(*head.axes), of_token),
        out_specs=(of_token, of_token),
        check_vma=False,
    )
    return run(hidden, table, labels)


def of_device(
    hidden: jax.Array, table: jax.Array, labels: jax.Array, head: Head, guess: bool
) -> tuple[jax.Array, jax.Array]:
    """Return what `chunked` does, by a device with its records and its part of the table."""
    over_rows, over_width = head.axes
    rows = table.shape[0] // head.chunks
    start = jax.lax.axis_index(over_rows) * table.shape[0] if over_rows else 0
    highest = jnp.full(labels.shape, -jnp.inf, "float32")
    none = jnp.zeros(labels.shape, "float32")
    before = Sums(highest, none, none, jnp.zeros(labels.shape, "int32") if guess else None)

    @partial(jax.checkpoint, prevent_cse=False)
    def add_chunk(sums: Sums, chunk: tuple) -> tuple:
        first, part = chunk
        if over_width:
            part = jax.lax.all_gather(part.astype(head.dtype), over_width, axis=1, tiled=True)
        operands = hidden.astype(head.dtype), part.astype(head.dtype)
        logits = jnp.einsum("bth,vh->btv", *operands, preferred_element_type="float32")
        if head.soft_cap is not None:
            logits = jnp.tanh(logits / head.soft_cap) * head.soft_cap
        return sums.add(logits, labels, first), None

    firsts = start + rows * jnp.arange(head.chunks, dtype="int32")
    sums, _ = jax.lax.scan(add_chunk, before, (firsts, table.reshape(head.chunks, rows, -1)))
    if over_rows:
        sums = sums.over_devices(over_rows)
    correct = sums.chosen >= sums.highest if sums.guess is None else sums.guess == labels
    return sums.highest + jnp.log(sums.total) - sums.chosen, correct


class Sums(NamedTuple):
    """What is known of each token's logits after some chunks of the vocabulary; float32 [records, tokens].

    highest  the largest of them
    total    the sum of e to the power of each minus the highest
    chosen   that of the label, 0 until it has come
    guess    int32, the id of the first that is the highest; None where nobody asks
    """

    highest: jax.Array
    total: jax.Array
    chosen: jax.Array
    guess: jax.Array | None

    def add(self, logits: jax.Array, labels: jax.Array, first: jax.Array) -> "Sums":
        """Return the sums with another chunk: logits [records, tokens, rows] of the ids from `first` on."""
        top = jax.lax.stop_gradient(logits.max(-1))
        highest = jnp.maximum(self.highest, top)
        total = self.total * jnp.exp(self.highest - highest) + jnp.exp(logits - highest[..., None]).sum(-1)
        places = first + jax.lax.broadcasted_iota("int32", logits.shape, logits.ndim - 1)
        chosen = self.chosen + jnp.where(places == labels[..., None], logits, 0.0).sum(-1)
        guess = self.guess
        if guess is not None:
            guess = jnp.where(top > self.highest, first + logits.argmax(-1).astype("int32"), guess)
        return Sums(highest, total, chosen, guess)

    def over_devices(self, axis: str) -> "Sums":
        """Return the sums over the devices of an axis of the mesh, each of which has other ids."""
        highest = jax.lax.pmax(jax.lax.stop_gradient(self.highest), axis)
        total, chosen = jax.lax.psum((self.total * jnp.exp(self.highest - highest), self.chosen), axis)
        guess = self.guess
        if guess is not None:
            guess = jax.lax.pmin(jnp.where(self.highest == highest, guess, jnp.iinfo("int32").max), axis)
        return Sums(highest, total, chosen, guess)

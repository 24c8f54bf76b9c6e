"""RoBERTa (Liu et al. 2019) in Keras: an encoder with learned positions and normalization after each sublayer.

Unlike in keras-hub's, the input `padding_mask` holds segment ids (tpulm.models.document_masking): documents of a record
do not see each other, and with `separate_documents` each begins at position 0. The attention probabilities have a
dropout of their own, and attention may be a kernel. Layers have transformers' names: tpulm.models.weight_names.
"""

from collections.abc import Mapping
from typing import Any

import keras
import keras_hub
from keras import ops

from tpulm.models.attention import Kernel, attend
from tpulm.models.document_masking import places, same_document
from tpulm.models.dropout import Dropout
from tpulm.models.gelu import gelu
from tpulm.specs.masked_sizes import ATTENTION_DROPOUT


class Embeddings(keras.layers.Layer):
    """The sum of a token's embedding and that of its position in the record or, if `packed`, in its document."""

    packed = False

    def __init__(self, vocabulary_size: int, positions: int, hidden: int, **kwargs: Any):
        """Make it for `positions` positions."""
        super().__init__(**kwargs)
        # Without reverse_dtype, it multiplies in float32 inside of another layer, also under mixed precision.
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size, hidden, reverse_dtype=self.compute_dtype, name="word_embeddings"
        )
        self.position_embedding = keras_hub.layers.PositionEmbedding(positions, name="position_embeddings")
        self.hidden = hidden

    def build(self, tokens_shape: tuple, segments_shape: tuple) -> None:
        """Make the variables."""
        self.token_embedding.build(tokens_shape)
        self.position_embedding.build((*tokens_shape, self.hidden))
        self.built = True

    def call(self, tokens: Any, segments: Any) -> Any:
        """Return the embeddings [records, tokens, hidden] of int32 [records, tokens]."""
        x = self.token_embedding(tokens)
        return x + self.position_embedding(x, positions=places(segments) if self.packed else None)

    def compute_output_shape(self, tokens_shape: tuple, segments_shape: tuple) -> tuple:
        """Return the shape of the hidden states."""
        return (*tokens_shape, self.hidden)


class SelfAttention(keras.layers.Layer):
    """Attention of several heads, within a document."""

    def __init__(self, hidden: int, heads: int, dropout: float, **kwargs: Any):
        """Make it; dropout  of the attention probabilities."""
        super().__init__(**kwargs)
        self.head_dim = hidden // heads
        self.kernel: Kernel | None = None  # of attention, in place of plain attention: see tpulm.models.attention
        self.query, self.key, self.value = (
            keras.layers.EinsumDense("bth,hnd->btnd", (None, heads, self.head_dim), bias_axes="nd", name=name)
            for name in ("query", "key", "value")
        )
        # The softmax is float32 also under mixed precision, as without dropout and in the kernels.
        self.softmax = keras.layers.Softmax(dtype="float32", name="softmax")
        self.dropout = Dropout(dropout, name="dropout")

    def build(self, x_shape: tuple, segments_shape: tuple) -> None:
        """Make the variables for hidden states [records, tokens, hidden]."""
        for layer in (self.query, self.key, self.value):
            layer.build(x_shape)
        self.built = True

    def call(self, x: Any, segments: Any, training: bool | None = None) -> Any:
        """Return the attention, [records, tokens, heads, head_dim]; segments  int32 [records, tokens]."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        if not self.dropout.rate:
            return attend(query, key, value, segments, self.kernel)
        query *= ops.cast(self.head_dim**-0.5, query.dtype)
        scores = ops.einsum("bknd,bqnd->bnqk", key, query)
        weights = ops.cast(self.softmax(scores, mask=same_document(segments)[:, None]), value.dtype)
        weights = self.dropout(weights, training=training)
        return ops.einsum("bnqk,bknd->bqnd", weights, value)

    def compute_output_shape(self, x_shape: tuple, segments_shape: tuple) -> tuple:
        """Return the shape of the attention."""
        return self.query.compute_output_shape(x_shape)


class Block(keras.layers.Layer):
    """A layer of the encoder: attention and feed-forward, each added to what it reads and then normalized."""

    def __init__(self, sizes: Mapping, **kwargs: Any):
        """Make it; sizes  as for `RobertaBackbone`."""
        super().__init__(**kwargs)
        hidden, dropout, epsilon = sizes["hidden_size"], sizes["hidden_dropout_prob"], sizes["layer_norm_eps"]
        self.attention = SelfAttention(
            hidden, sizes["num_attention_heads"], sizes[ATTENTION_DROPOUT], name="attention.self"
        )
        self.attention_output = keras.layers.EinsumDense(
            "btnd,ndh->bth", (None, hidden), bias_axes="h", name="attention.output.dense"
        )
        self.attention_dropout = Dropout(dropout, name="attention.output.dropout")
        self.attention_norm = keras.layers.LayerNormalization(epsilon=epsilon, name="attention.output.LayerNorm")
        self.intermediate = keras.layers.Dense(sizes["intermediate_size"], activation=gelu, name="intermediate.dense")
        self.feedforward_output = keras.layers.Dense(hidden, name="output.dense")
        self.feedforward_dropout = Dropout(dropout, name="output.dropout")
        self.feedforward_norm = keras.layers.LayerNormalization(epsilon=epsilon, name="output.LayerNorm")

    def build(self, x_shape: tuple, segments_shape: tuple) -> None:
        """Make the variables for hidden states [records, tokens, hidden]."""
        self.attention.build(x_shape, segments_shape)
        self.attention_output.build(self.attention.compute_output_shape(x_shape, segments_shape))
        for layer in (self.attention_norm, self.intermediate, self.feedforward_norm):
            layer.build(x_shape)
        self.feedforward_output.build((*x_shape[:-1], self.intermediate.units))
        self.built = True

    def call(self, x: Any, segments: Any, training: bool | None = None) -> Any:
        """Return the next hidden states, [records, tokens, hidden]; segments  int32 [records, tokens]."""
        attended = self.attention_output(self.attention(x, segments, training=training))
        attended = self.attention_dropout(attended, training=training)
        x = self.attention_norm(attended + x)
        fed = self.feedforward_dropout(self.feedforward_output(self.intermediate(x)), training=training)
        return self.feedforward_norm(fed + x)

    def compute_output_shape(self, x_shape: tuple, segments_shape: tuple) -> tuple:
        """Return the shape of the hidden states, that of the inputs."""
        return x_shape


class RobertaBackbone(keras_hub.models.Backbone):
    """The encoder: inputs token_ids and padding_mask, int32 [records, tokens]; outputs [records, tokens, hidden]."""

    def __init__(self, sizes: Mapping, vocabulary_size: int, positions: int):
        """Build it for `positions` positions; sizes  as in tpulm.specs.masked_sizes, with ATTENTION_DROPOUT."""
        layers, hidden = sizes["num_hidden_layers"], sizes["hidden_size"]
        self.embeddings = Embeddings(vocabulary_size, positions, hidden, name="roberta.embeddings")
        self.token_embedding = self.embeddings.token_embedding
        self.transformer_layers = [Block(sizes, name=f"roberta.encoder.layer.{number}") for number in range(layers)]
        tokens, mask = (keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "padding_mask"))
        normalize = keras.layers.LayerNormalization(
            epsilon=sizes["layer_norm_eps"], name="roberta.embeddings.LayerNorm"
        )
        x = Dropout(sizes["hidden_dropout_prob"], name="roberta.embeddings.dropout")(
            normalize(self.embeddings(tokens, mask))
        )
        for block in self.transformer_layers:
            x = block(x, mask)
        super().__init__(inputs={"token_ids": tokens, "padding_mask": mask}, outputs=x)
        self.vocabulary_size, self.hidden_dim = vocabulary_size, hidden
        self.num_layers, self.num_heads = layers, sizes["num_attention_heads"]
        self.head_dim, self.attention_dropout = hidden // self.num_heads, sizes[ATTENTION_DROPOUT]
        self.max_sequence_length = positions

    def separate_documents(self) -> None:
        """Count positions by document from now on; for records of one document, this is needless work."""
        self.embeddings.packed = True

    def use_kernel(self, kernel: Kernel) -> None:
        """Attend by a kernel from now on."""
        for block in self.transformer_layers:
            block.attention.kernel = kernel


class RobertaMaskedLM(keras_hub.models.MaskedLM):
    """The encoder with its head: inputs token_ids, padding_mask and mask_positions; outputs logits."""

    def __init__(self, backbone: RobertaBackbone, epsilon: float):
        """Put a head on a backbone; epsilon  of the head's normalization."""
        self.backbone, self.preprocessor = backbone, None
        self.masked_lm_head = keras_hub.layers.MaskedLMHead(
            token_embedding=backbone.token_embedding,
            intermediate_activation=gelu,
            layer_norm_epsilon=epsilon,
            name="lm_head",
        )
        inputs = {**backbone.input, "mask_positions": keras.Input((None,), dtype="int32", name="mask_positions")}
        outputs = self.masked_lm_head(backbone(backbone.input), inputs["mask_positions"])
        super().__init__(inputs=inputs, outputs=outputs, compile=False)

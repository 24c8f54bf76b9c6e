"""ModernBERT (Warner et al. 2024) in Keras, which keras-hub does not have.

An encoder with normalization before each sublayer, rotary positions, a gated feed-forward layer, and attention that is
global in every few layers and local in the others. The input `padding_mask` holds segment ids, so that documents do not
see each other: tpulm.models.document_masking.
"""

from collections.abc import Mapping
from typing import Any

import keras
import keras_hub
from keras import ops

from tpulm.models.attention import Kernel, attend
from tpulm.models.document_masking import places
from tpulm.models.dropout import Dropout
from tpulm.models.gelu import gelu

EPSILON = 1e-5


def norm(name: str) -> keras.layers.LayerNormalization:
    """Return a layer normalization without a bias."""
    return keras.layers.LayerNormalization(epsilon=EPSILON, center=False, name=name)


class Block(keras.layers.Layer):
    """A layer of the encoder: attention and feed-forward, each added to what it reads."""

    def __init__(self, sizes: Mapping, number: int, **kwargs: Any):
        """Make layer `number`, from 0; its attention is local unless global_attn_every_n_layers divides `number`."""
        super().__init__(**kwargs)
        hidden, heads, inner = sizes["hidden_size"], sizes["num_attention_heads"], sizes["intermediate_size"]
        local = number % sizes["global_attn_every_n_layers"] != 0
        self.num_heads, self.head_dim = heads, hidden // heads
        self.window = sizes["local_attention"] // 2 if local else None
        self.kernel: Kernel | None = None  # of attention, in place of plain attention: see tpulm.models.attention
        theta = sizes["local_rope_theta" if local else "global_rope_theta"]
        self.rope = keras_hub.layers.RotaryEmbedding(max_wavelength=theta, name="rotary_embedding")
        self.attention_norm = norm("attn_norm") if number else None
        self.query, self.key, self.value = (
            keras.layers.EinsumDense("bth,hnd->btnd", (None, heads, self.head_dim), name=f"attn.Wqkv.{name}")
            for name in ("query", "key", "value")
        )
        self.attention_output = keras.layers.EinsumDense("btnd,ndh->bth", (None, hidden), name="attn.Wo")
        self.feedforward_norm = norm("mlp_norm")
        self.activated, self.gate = (
            keras.layers.Dense(inner, use_bias=False, name=f"mlp.Wi.{name}") for name in ("activated", "gate")
        )
        self.dropout = Dropout(sizes["mlp_dropout"], name="mlp.drop")
        self.feedforward_output = keras.layers.Dense(hidden, use_bias=False, name="mlp.Wo")

    def build(self, x_shape: tuple, segments_shape: tuple) -> None:
        """Make the variables for hidden states [records, tokens, hidden]."""
        heads = (*x_shape[:-1], self.num_heads, self.head_dim)
        inner = (*x_shape[:-1], self.activated.units)
        for layer in (self.query, self.key, self.value, self.activated, self.gate, self.feedforward_norm):
            layer.build(x_shape)
        if self.attention_norm is not None:
            self.attention_norm.build(x_shape)
        self.attention_output.build(heads)
        self.feedforward_output.build(inner)
        self.built = True

    def call(self, x: Any, segments: Any, training: bool | None = None) -> Any:
        """Return the next hidden states, [records, tokens, hidden]; segments  int32 [records, tokens]."""
        normed = x if self.attention_norm is None else self.attention_norm(x)
        positions = places(segments)
        query, key = (self.rope(part(normed), positions=positions) for part in (self.query, self.key))
        x = x + self.attention_output(attend(query, key, self.value(normed), segments, self.kernel, self.window))
        normed = self.feedforward_norm(x)
        gated = gelu(self.activated(normed)) * self.gate(normed)
        return x + self.feedforward_output(self.dropout(gated, training=training))

    def compute_output_shape(self, x_shape: tuple, segments_shape: tuple) -> tuple:
        """Return the shape of the hidden states, that of the inputs."""
        return x_shape


class ModernBertBackbone(keras_hub.models.Backbone):
    """The encoder: inputs token_ids and padding_mask, int32 [records, tokens]; outputs [records, tokens, hidden]."""

    attention_dropout = 0.0

    def __init__(self, sizes: Mapping, vocabulary_size: int):
        """Build it; sizes  as in tpulm.specs.masked_sizes."""
        layers, hidden = sizes["num_hidden_layers"], sizes["hidden_size"]
        self.token_embedding = keras.layers.ReversibleEmbedding(  # reverse_dtype: see tpulm.models.roberta_layers
            vocabulary_size,
            hidden,
            reverse_dtype=keras.config.dtype_policy().compute_dtype,
            name="model.embeddings.tok_embeddings",
        )
        self.transformer_layers = [Block(sizes, number, name=f"model.layers.{number}") for number in range(layers)]
        tokens, mask = (keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "padding_mask"))
        x = norm("model.embeddings.norm")(self.token_embedding(tokens))
        x = Dropout(sizes["embedding_dropout"], name="model.embeddings.drop")(x)
        for block in self.transformer_layers:
            x = block(x, mask)
        super().__init__(inputs={"token_ids": tokens, "padding_mask": mask}, outputs=norm("model.final_norm")(x))
        self.vocabulary_size, self.hidden_dim = vocabulary_size, hidden
        self.num_layers, self.num_heads = layers, sizes["num_attention_heads"]
        self.head_dim = hidden // self.num_heads
        self.max_sequence_length = sizes["max_position_embeddings"]

    def separate_documents(self) -> None:
        """Do nothing: documents are always separate."""

    def use_kernel(self, kernel: Kernel) -> None:
        """Attend by a kernel from now on."""
        for block in self.transformer_layers:
            block.kernel = kernel

    def tokens_seen(self, length: int) -> int:
        """Return how many tokens one in the middle of `length` tokens sees, summed over the layers."""
        windows = [block.window for block in self.transformer_layers]
        return sum(length if window is None else min(length, 2 * window + 1) for window in windows)


class Head(keras.layers.Layer):
    """The head of the masked model: dense, GELU, normalization, and the table of embeddings in reverse."""

    def __init__(self, embedding: keras.layers.ReversibleEmbedding, **kwargs: Any):
        """Take the embedding of the backbone, built."""
        super().__init__(**kwargs)
        self.embedding = embedding
        self.dense = keras.layers.Dense(embedding.output_dim, use_bias=False, name="dense")
        self.norm = norm("norm")

    def build(self, x_shape: tuple, positions_shape: tuple) -> None:
        """Make the variables for hidden states [records, tokens, hidden]."""
        self.dense.build(x_shape)
        self.norm.build(x_shape)
        self.bias = self.add_weight(name="output_bias", shape=(self.embedding.input_dim,), initializer="zeros")
        self.built = True

    def call(self, x: Any, positions: Any) -> Any:
        """Return logits [records, predictions, vocabulary]; positions  int32 [records, predictions]."""
        x = ops.take_along_axis(x, positions[:, :, None], axis=1)
        x = self.norm(gelu(self.dense(x)))
        return ops.cast(self.embedding(x, reverse=True), self.compute_dtype) + ops.cast(self.bias, self.compute_dtype)

    def compute_output_shape(self, x_shape: tuple, positions_shape: tuple) -> tuple:
        """Return the shape of the logits."""
        return (*positions_shape, self.embedding.input_dim)


class ModernBertMaskedLM(keras_hub.models.MaskedLM):
    """The encoder with its head: inputs token_ids, padding_mask and mask_positions; outputs logits."""

    def __init__(self, backbone: ModernBertBackbone):
        self.backbone, self.preprocessor = backbone, None
        self.masked_lm_head = Head(backbone.token_embedding, name="head")
        inputs = {**backbone.input, "mask_positions": keras.Input((None,), dtype="int32", name="mask_positions")}
        outputs = self.masked_lm_head(backbone(backbone.input), inputs["mask_positions"])
        super().__init__(inputs=inputs, outputs=outputs, compile=False)

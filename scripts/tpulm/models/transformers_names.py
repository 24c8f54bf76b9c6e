"""What transformers calls the layers of keras-hub's causal models: Llama's names, which all families have.

Pure Python.
"""

import re

# Projections of a block, by keras-hub's names of the layers in all families; those with heads are of the first three.
MODULES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "ffw_gating": "mlp.gate_proj",
    "ffw_gating_2": "mlp.up_proj",
    "ffw_linear": "mlp.down_proj",
    "feedforward_gate_dense": "mlp.gate_proj",
    "feedforward_intermediate_dense": "mlp.up_proj",
    "feedforward_output_dense": "mlp.down_proj",
}
WITH_HEADS = ("query", "key", "value")
# Normalizations of a block. Gemma 1 has none after attention and feed-forward, and Llama's name for the one between.
NORMS = {
    "pre_attention_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_ffw_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "self_attention_layernorm": "input_layernorm",
    "feedforward_layernorm": "post_attention_layernorm",
    "query_dense_layernorm": "self_attn.q_norm",
    "key_dense_layernorm": "self_attn.k_norm",
}
WITHOUT_POST_NORMS = NORMS | {"pre_ffw_norm": "post_attention_layernorm"}
# What is in no block, by the whole path of the variable.
OUTSIDE = {
    "token_embedding/embeddings": "model.embed_tokens.weight",
    "token_embedding/reverse_embeddings": "lm_head.weight",
    "final_normalization/scale": "model.norm.weight",
    "sequence_output_layernorm/scale": "model.norm.weight",
}
# Of a layer in a block: the block's number and the layer's name.
LAYER = re.compile(
    rf"(?:decoder_block|transformer_layer)_(\d+)/(?:(?:self_)?attention/)?({'|'.join(MODULES | NORMS)})$"
)

"""Records of several documents with `packing: segments`: numbered in the records, apart from each other in a model."""

import json

import numpy as np
import pytest
import warm
from hypothesis import given, settings
from hypothesis import strategies as st
from tpulm.records.shards import Layout, pack

DOCUMENTS = st.lists(st.lists(st.integers(5, 99), max_size=20), min_size=1, max_size=20)


@pytest.mark.unit
@given(DOCUMENTS, st.integers(4, 30), st.integers(0, 1), st.integers(1, 4))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_documents_are_numbered_within_each_record(documents, length, overlap, at_once):
    layout = Layout("segments", length, length + overlap, 0, 1)
    groups = [documents[start : start + at_once] for start in range(0, len(documents), at_once)]
    batches = [(np.array(sum(group, []), np.int32), np.array(list(map(len, group)))) for group in groups]
    plain = Layout("concat", length, length + overlap, 0, 1)
    windows, same = (list(pack(batches, one.packer())) for one in (layout, plain))
    owners = [number for number, document in enumerate(documents) for _ in document]
    place = 0
    for block, other in zip(windows, same, strict=True):
        assert (block["input_ids"] == other["input_ids"]).all() and "segment_ids" not in other
        for row in block["segment_ids"]:
            here = owners[place : place + length + overlap]
            expected = {owner: number for number, owner in enumerate(sorted(set(here)), 1)}
            assert row.tolist() == [expected[owner] for owner in here]
            place += length


# Four documents in one record, and three with padding in another; each also alone, before the model is changed.
APART = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
import jax, keras_hub, numpy as np
from tpulm.compat.keras import skip_initialization
from tpulm.models import roberta
from tpulm.models.causal import construct, draw_causal_weights
from tpulm.specs.training_step import CausalArchitecture
from tpulm.models.document_masking import separate_documents

def compared(family, sizes):
    if family == "RobertaBackbone":
        model = roberta.build(sizes, 64, 1)
        roberta.draw_weights(model, 0.3, 0)
    else:
        with skip_initialization():
            model = construct(CausalArchitecture(family, sizes, 64))
        draw_causal_weights(model.backbone, 0)
    dice = np.random.default_rng(0)
    documents = [dice.integers(5, 64, count).astype("int32") for count in (5, 9, 3, 7, 4, 6, 8)]
    ids, segments = np.zeros((2, 24), "int32"), np.zeros((2, 24), "int32")
    for row, some in enumerate((documents[:4], documents[4:])):
        together = np.concatenate(some)
        ids[row, : len(together)] = together
        segments[row, : len(together)] = np.repeat(np.arange(1, len(some) + 1), list(map(len, some)))

    values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]
    single = np.stack([np.pad(document, (0, 24 - len(document))) for document in documents])
    inside = (np.arange(24) < np.array(list(map(len, documents)))[:, None]).astype("int32")

    def logits(mask):  # of the documents alone, then of those in records
        inputs = {"token_ids": np.concatenate([single, ids]), "padding_mask": np.concatenate([inside, mask])}
        if family == "RobertaBackbone":
            inputs["mask_positions"] = np.tile(np.arange(24, dtype="int32"), (9, 1))
        found = np.asarray(jax.jit(lambda inputs: model.stateless_call(*values, inputs, training=False)[0])(inputs))
        return found[:7][inside > 0], found[7:][segments > 0]

    alone, mixed = logits((segments > 0).astype("int32"))
    separate_documents(model, "the.run")
    plain, apart = logits(segments)
    found = {"apart": apart, "mixed": mixed, "plain": plain}
    return {name: float(abs(array - alone).max()) for name, array in found.items()}

print("RESULT" + json.dumps({name: compared(*case) for name, case in json.loads(sys.argv[1]).items()}))
"""

GEMMA = {
    "num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32, "intermediate_dim": 64,
    "head_dim": 8,
}  # fmt: skip
SECOND = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
WINDOWS = {"use_sliding_window_attention": True, "sliding_window_size": 4}
FAMILIES = {
    "RoBERTa": (
        "RobertaBackbone",
        {
            "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32,
            "hidden_dropout_prob": 0.0, "max_position_embeddings": 32, "layer_norm_eps": 1e-5,
        },
    ),
    "Gemma 1": ("GemmaBackbone", GEMMA),
    "Gemma 2": (
        "GemmaBackbone",
        GEMMA | SECOND | WINDOWS | {"attention_logit_soft_cap": 5.0, "final_logit_soft_cap": 30.0},
    ),
    "Gemma 3": ("Gemma3Backbone", GEMMA | SECOND | WINDOWS | {"num_layers": 6, "image_size": None}),
}  # fmt: skip


def test_a_document_in_a_record_has_the_logits_that_it_has_alone():
    cases = {name: family for name, family in FAMILIES.items() if name != "Gemma 1"}  # whose layers Gemma 2 has
    results = warm.result(warm.run("jax", APART, json.dumps(cases)))
    for name, found in results.items():
        assert found["apart"] < 1e-5 and found["plain"] < 1e-5, name
        assert found["mixed"] > 1e-2, name  # without segment ids, documents see each other

"""Records of instruction data: which tokens belong to a response, through every packing."""

import numpy as np
import pytest
from conftest import open_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from test_causal import records_of
from test_corpus import fails
from tpulm.records.causal_batches import held_out_batches, predicted, training_batch
from tpulm.records.shards import Layout, pack
from tpulm.records.tfrecord import decode, scan
from tpulm.specs.record_arrays import LOSS_MASK, causal_arrays
from tpulm.tokenization.sentencepiece_bpe import train_vocabulary
from tpulm.tokenization.tokenizer import check_control_tokens, tokenize

pytestmark = pytest.mark.unit

PROMPTS = ["Q: what is the sum?\nA:", "Q: \u00e9 \U0001f600 or not\nA:", "Q: one more\nA:"]
ANSWERS = [" it is the value", " \U0001f600\u00e9", ""]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    draw = np.random.default_rng(0)
    texts = ["the " + " ".join(draw.choice(["the", "value", "it", "is", "sum"], size=8)) for _ in range(200)]
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.spm"
    path.write_bytes(train_vocabulary([*texts, "Q: \nA:"], 310, "x"))
    return path


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return open_vocabulary(vocabulary)


def documents():
    """Return texts, and where their responses are."""
    texts = [prompt + answer for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    return texts, [[(len(prompt), len(text))] for prompt, text in zip(PROMPTS, texts, strict=True)]


def tokens(tokenizer, text, spans):
    """Return the pieces of a document that belong to a response."""
    [(ids, _, mask)] = tokenize([[text]], tokenizer, [[spans]])
    assert (ids.dtype, mask.dtype, ids.shape) == (np.int32, np.int32, mask.shape)
    return [tokenizer.piece(i) for i in ids[mask == 1].tolist()]


def test_which_tokens_belong_to_a_response(tokenizer):
    texts, spans = documents()
    assert tokens(tokenizer, texts[0], spans[0]) == ["\u2581it", "\u2581is", "\u2581the", "\u2581value", "<eos>"]
    # Characters without a piece are bytes, all of which belong to them.
    assert tokens(tokenizer, texts[1], spans[1]) == [
        "\u2581", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xC3>", "<0xA9>", "<eos>"
    ]  # fmt: skip
    # Those of the same characters in the prompt do not, though they stand right before it.
    assert tokens(tokenizer, "\u00e9\U0001f600x", [(2, 3)])[1:] == ["<eos>"]
    # A token with characters on both sides of a boundary belongs to the response.
    assert tokens(tokenizer, "the value", [(6, 9)]) == ["\u2581value", "<eos>"]
    assert tokens(tokenizer, "the value", [(0, 1), (4, 5)]) == ["the", "\u2581value"]  # the text does not end with it
    # Where all counts, all but <bos> do.
    assert len(tokens(tokenizer, "the value", [(0, 9)])) == 3
    plain = list(tokenize([texts[:2], texts[2:]], tokenizer))
    marked = list(tokenize([texts[:2], texts[2:]], tokenizer, [spans[:2], spans[2:]]))
    assert [len(batch) for batch in plain + marked] == [2, 2, 3, 3]
    for one, other in zip(plain, marked, strict=True):
        assert all((a == b).all() for a, b in zip(one, other[:2], strict=True))  # ids do not depend on responses


def test_tokens_between_turns_that_are_read_as_text(tokenizer):
    good = ["Q: it is<eof>"]
    assert list(check_control_tokens([good], tokenizer)) == [good]
    said = fails(list, check_control_tokens([good, ["it is<eos>Q:"]], tokenizer))
    assert said.startswith("the chat template writes <eos> between turns")


MASKED = st.lists(
    st.lists(st.tuples(st.integers(5, 99), st.integers(0, 1)), min_size=2, max_size=40), min_size=1, max_size=20
)


@given(MASKED, st.sampled_from(["concat", "segments", "pad"]), st.integers(4, 30), st.integers(1, 4))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_mask_goes_with_its_token(found, packing, length, at_once):
    # The mask of a token is its last bit, which packing knows nothing of.
    ids = [[token * 2 + mask for token, mask in document] for document in found]
    groups = [ids[start : start + at_once] for start in range(0, len(ids), at_once)]
    flat = [(np.array(sum(group, []), np.int32), np.array(list(map(len, group)))) for group in groups]
    sizes = packing, length, length + 1, 0, 1
    blocks = list(pack([(*one, one[0] % 2) for one in flat], Layout(*sizes, responses=True).packer()))
    plain = list(pack(flat, Layout(*sizes).packer()))
    assert len(blocks) == len(plain)
    row = 0
    for block, other in zip(blocks, plain, strict=True):
        mask = block.pop("loss_mask")
        assert block.keys() == other.keys() and all((block[name] == other[name]).all() for name in block)
        expected = block["input_ids"] % 2 * block["attention_mask"]
        if packing == "pad":
            cut = np.array([len(document) > length + 1 for document in ids[row : row + len(mask)]])
            expected[cut, -1] = 0  # a document that was cut has not ended: its last token is not learned
            row += len(mask)
        assert (mask == expected).all()


@pytest.mark.parametrize("packing", ["concat", "segments", "pad"])
def test_records_and_batches(vocabulary, tmp_path, packing):
    texts, spans = documents()
    records = records_of(vocabulary, tmp_path, texts, packing, 24, spans)
    [batch] = held_out_batches(records, {"batch_size": len(records), "microbatches": 1})
    arrays = causal_arrays(24, packing, responses=True)
    assert {name: (array.shape[1:], str(array.dtype)) for name, array in batch.items()} == arrays
    counted = batch[LOSS_MASK][:, 1:]
    entry = records.manifest["splits"]["train"]
    assert entry["loss_tokens"] == counted.sum() > 0 and entry["target_tokens"] == batch["mask"][:, 1:].sum()
    assert entry["records_without_loss"] == (counted.sum(1) == 0).sum()
    assert predicted(records) == "responses"
    step = training_batch(records, {"batch_size": 2, "seed": 0}, 0)
    assert step.keys() == batch.keys() and step[LOSS_MASK].shape == (2, 25)
    for _, data in scan(tmp_path / "train/00000-of-00001.tfrecord"):
        assert set(decode(data, LOSS_MASK)) <= {0, 1}


def test_a_text_whose_responses_are_all_cut_off_is_refused(vocabulary, tmp_path):
    texts, spans = documents()
    said = fails(records_of, vocabulary, tmp_path, texts[:2], "pad", 8, spans[:2])
    assert "train" in said and "response" in said and "sequence_length 8" in said
    records = records_of(vocabulary, tmp_path, [texts[0], "the value"], "pad", 8, [spans[0], [(0, 9)]])
    entry = records.manifest["splits"]["train"]
    assert entry["records_without_loss"] == 1 and entry["loss_tokens"] == 3

"""Every masked architecture that the config takes with `backend: tensorflow`: trained, exported, opened, asked."""

import json

import pytest
import warm
from tpulm.core.errors import UserError
from tpulm.specs.masked_architectures import ARCHITECTURES, find_architecture

LENGTH = 16
PLAIN = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": LENGTH + 4,
}  # fmt: skip
OF_XLM = {"emb_dim": 16, "n_layers": 1, "n_heads": 2, "max_position_embeddings": LENGTH + 4}
# Tiny sizes, by the keys of each architecture.
SIZES = {
    "albert": PLAIN | {"embedding_size": 8},
    "bert": PLAIN,
    "camembert": PLAIN,
    "convbert": PLAIN | {"embedding_size": 16, "conv_kernel_size": 3},
    "deberta": PLAIN,
    "deberta-v2": PLAIN,
    "distilbert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": LENGTH + 4},
    "electra": PLAIN | {"embedding_size": 8},
    "flaubert": OF_XLM,
    "funnel": {
        "block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "num_decoder_layers": 1,
    },
    "layoutlm": PLAIN,
    "mobilebert": PLAIN | {"embedding_size": 8, "intra_bottleneck_size": 8},
    "mpnet": PLAIN,
    "rembert": PLAIN | {"input_embedding_size": 8, "output_embedding_size": 8},
    "roberta": PLAIN,
    "roberta-prelayernorm": PLAIN,
    "roformer": PLAIN | {"embedding_size": 16},
    "tapas": PLAIN | {"type_vocab_sizes": [3, 2, 2, 2, 2, 2, 2]},
    "xlm": OF_XLM,
    "xlm-roberta": PLAIN,
}  # fmt: skip

# As the scripts of the rules do it, in one process for all.
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from tpulm.specs.masked_architectures import ARCHITECTURES
from tpulm.core.files import read_json, write_json, write_text
from tpulm.models.transformers_config import model_config
from tpulm.models.masked_folders import pytorch_arrays
from tpulm.models.tensor_files import save_tensors
from tpulm.tokenization.folder import write_settings
from tpulm.training.tensorflow_model import load_model
from tpulm.training.tensorflow_runtime import start, tf
from tpulm.training.tensorflow_trainer import Trainer
from transformers import AutoTokenizer, pipeline

LENGTH, VOCABULARY, strategy = 16, 64, start(1, 1)
words = ["[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]", *(f"w{number}" for number in range(VOCABULARY - 5))]
manifest = {"sequence_length": LENGTH, "vocab_size": VOCABULARY,
            "special_ids": {"cls": 0, "sep": 1, "unk": 2, "pad": 3, "mask": 4}}
recipe = {"seed": 3, "precision": "float32", "optimizer": {
    "weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "global_clipnorm": 1.0}}
ids = np.random.default_rng(0).integers(5, VOCABULARY, (4, LENGTH)).astype(np.int32)
ids[:, 0], ids[:, -1] = 0, 1
positions = np.array([[3, 7]] * 4, np.int32)
batch = {"input_ids": ids, "positions": positions, "labels": np.take_along_axis(ids, positions, 1),
         "weights": np.ones((4, 2), np.float32)}
batch = {name: tf.constant(array) for name, array in batch.items()}
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer.add_special_tokens(words[:5])
tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)])
results = {}
for name, sizes in json.loads(sys.argv[1]).items():
    config = model_config({"architecture": name} | sizes, manifest, "mlm.runs.x.model")
    trainer = Trainer(strategy, config, recipe)
    losses = [float(trainer.step(batch, tf.constant(1e-3), tf.constant(step, tf.int64))[0]) for step in range(2)]
    folder = Path(sys.argv[2]) / name
    folder.mkdir()
    write_text(folder / "config.json", config.to_json_string())
    save_tensors(str(folder / "model.safetensors"), pytorch_arrays(trainer.weights()))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = folder / "tokenizer_config.json"
    write_settings(tokenizer, str(settings), str(folder / "special_tokens_map.json"))
    if not ARCHITECTURES[name].token_types:
        write_json(settings, read_json(settings) | {"model_input_names": ["input_ids", "attention_mask"]})
    opened = load_model(folder)
    logits = [model({"input_ids": batch["input_ids"]}, training=False).logits for model in (trainer.model, opened)]
    fill = pipeline("fill-mask", model=opened, tokenizer=AutoTokenizer.from_pretrained(folder), framework="tf",
                    dtype=None)
    results[name] = {"losses": losses, "difference": float(tf.reduce_max(tf.abs(logits[0] - logits[1]))),
                     "answers": len(fill("w3 w4 [MASK] w5"))}
print("RESULT" + json.dumps(results))
"""


@pytest.mark.long  # the fixture `trained` has a RoBERTa, tests/test_mlm_tensorflow.py a BERT
def test_architectures_train_and_are_exported_and_asked(tmp_path):
    results = warm.result(warm.run("tensorflow", PROGRAM, json.dumps(SIZES), str(tmp_path)))
    assert set(results) == set(SIZES)
    for name, found in results.items():
        assert found["losses"][1] < found["losses"][0] < 6, name
        assert found["difference"] < 1e-5 and found["answers"] == 5, name


@pytest.mark.unit
def test_the_others_are_refused_by_name():
    refused = set(ARCHITECTURES) - set(SIZES)
    assert refused == {"esm", "longformer"}
    for name in refused:
        with pytest.raises(UserError, match=f'^k.architecture is "{name}", which cannot be trained here: '):
            find_architecture(name, "k")

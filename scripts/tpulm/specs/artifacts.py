"""Names that several stages share: splits, special tokens, and the files that one stage passes to the next."""

SPLITS = ("train", "validation", "test")


def resolved(path: str) -> str:
    """Return a path that begins with Snakemake's <results>/ or <logs>/ as a path in the working folder."""
    return path.replace("<results>", "results").replace("<logs>", "logs")


def lengths_file(corpus: str) -> str:
    """Return the file that has the characters of each document of a file of a corpus, an int32 array."""
    return corpus.removesuffix(".parquet") + ".lengths.npy"


# Of a tokenizer that is trained here, at ids 0 to 4.
SPECIAL_TOKENS = ("[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]")
PAD_ID = SPECIAL_TOKENS.index("<pad>")
PAD_ID_OF_ROBERTA = 1  # in its published tokenizers

# The text, a folder below results/, that the models of each stage are trained on.
TRAINED_ON = {"mlm": "corpus", "base": "corpus", "finetune": "finetune-text"}

# The file of a set of records, in its folder, that has the size and checksum of every shard.
MANIFEST = "manifest.json"

# results/tokenizer/, by the names of the rules' outputs: what AutoTokenizer.from_pretrained reads.
TOKENIZER_FILES = {
    "tokenizer": "tokenizer.json",
    "config": "tokenizer_config.json",
    "special_tokens_map": "special_tokens_map.json",
}
# results/mlm/RUN/model/: what AutoModelForMaskedLM.from_pretrained reads.
MODEL_FILES = ("config.json", "model.safetensors", *TOKENIZER_FILES.values())
# results/transformers/STAGE/RUN/ of a causal model whose weights are in several files: which tensor is in which.
SHARD_INDEX = "model.safetensors.index.json"
# results/gguf/STAGE/RUN-KIND.gguf of a causal model, by KIND: bytes of a weight.
GGUF_KINDS = {"f16": 2, "q8_0": 34 / 32}
# results/finetune/RUN/ of a run with method: lora: for Keras, and for PEFT.
ADAPTER_FILES = (
    *("adapter.lora.h5", "adapter.lora.json"),
    *("adapter/adapter_model.safetensors", "adapter/adapter_config.json"),
)

# The parts of a checkpoint, by the names of the rules' outputs: all that the next segment needs.
CHECKPOINT_FILES = {
    "weights": "weights.safetensors",
    "optimizer": "optimizer.safetensors",
    "best": "best.safetensors",
    "state": "state.json",
}
CHECKPOINT_ARRAYS = tuple(part for part, file in CHECKPOINT_FILES.items() if file.endswith(".safetensors"))
ARRAY_FILES = {CHECKPOINT_FILES[part] for part in CHECKPOINT_ARRAYS}
# Folders below results/ of what is kept though the config may name it no more.
KEPT_FOLDERS = ("archive", "history", "jobs")
# The mark, in a checkpoint's folder, that keep_checkpoints has deleted its arrays.
PRUNED = "pruned.json"
# What a segment writes of its steps, beside its checkpoint.
SEGMENT_FILES = {"history": "history.csv", "timings": "timings.csv"}
# Folder of a run for what it goes on from in the middle of a segment: no artifact, and gone when the run is complete.
SNAPSHOTS = "snapshots"


# Splits that no model is trained on: the first selects, the second is only reported.
HELD_OUT = SPLITS[1:]
TEST = HELD_OUT[1]
# What ends the name of a set of documents whose responses are scored, given what is before each.
OF_RESPONSES = ", responses"
# Where a checkpoint's weights are as a model, to be scored, finetuned or asked; no artifact.
EXPORTED = "<results>/evaluation/checkpoints"
# Below results/: the models that are finetuned on tasks.
TASKS = "evaluation/tasks"
CARD = "README.md"  # of an artifact
# Figures of a published run that the config may give: what they are called, and whether higher is better.
PUBLISHED_FIGURES = {
    "train_loss": ("train loss", False),
    "train_accuracy": ("train accuracy", True),
    "validation_loss": ("validation loss of the best checkpoint", False),
    "validation_accuracy": ("validation accuracy of the best checkpoint", True),
    "seconds_per_step": ("seconds per step, median", False),
}

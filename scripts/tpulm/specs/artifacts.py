"""Names that several stages share: splits, special tokens, and files that one stage passes to the next."""

SPLITS = ("train", "validation", "test")


def resolved(path: str) -> str:
    """Return a path that begins with Snakemake's <results>/ or <logs>/ as a path in the working folder."""
    return path.replace("<results>", "results").replace("<logs>", "logs")


def lengths_file(corpus: str) -> str:
    """Return the .lengths.npy file of a corpus file: the characters of each document, an int32 array."""
    return corpus.removesuffix(".parquet") + ".lengths.npy"


# Special tokens of a tokenizer that is trained here, with ids 0 to 4.
SPECIAL_TOKENS = ("[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]")
PAD_ID = SPECIAL_TOKENS.index("<pad>")
PAD_ID_OF_ROBERTA = 1  # id of the token for padding in RoBERTa's published tokenizers

# The training text of each stage, a folder below results/.
TRAINED_ON = {"mlm": "corpus", "base": "corpus", "finetune": "finetune-text"}

# The file in the folder of a set of records that has the size and checksum of every shard.
MANIFEST = "manifest.json"

# Files of results/tokenizer/, which AutoTokenizer.from_pretrained reads, by the names of the rules' outputs.
TOKENIZER_FILES = {
    "tokenizer": "tokenizer.json",
    "config": "tokenizer_config.json",
    "special_tokens_map": "special_tokens_map.json",
}
# Files of results/mlm/RUN/model/, which AutoModelForMaskedLM.from_pretrained reads.
MODEL_WEIGHTS = "model.safetensors"
MODEL_FILES = ("config.json", MODEL_WEIGHTS, *TOKENIZER_FILES.values())
# File of results/transformers/STAGE/RUN/ with the file of each tensor, if the weights are in several files.
SHARD_INDEX = f"{MODEL_WEIGHTS}.index.json"
# Bytes of a weight by TYPE in results/gguf/STAGE/RUN-TYPE.gguf of a causal model.
GGUF_TYPES = {"f16": 2, "q8_0": 34 / 32}
# Files of results/finetune/RUN/ with method: lora, for Keras and for PEFT.
ADAPTER_FILES = (
    *("adapter.lora.h5", "adapter.lora.json"),
    *("adapter/adapter_model.safetensors", "adapter/adapter_config.json"),
)

# Files of a checkpoint, all that the next segment needs, by the names of the rules' outputs.
CHECKPOINT_FILES = {
    "weights": "weights.safetensors",
    "optimizer": "optimizer.safetensors",
    "best": "best.safetensors",
    "state": "state.json",
}
CHECKPOINT_ARRAYS = tuple(part for part, file in CHECKPOINT_FILES.items() if file.endswith(".safetensors"))
ARRAY_FILES = {CHECKPOINT_FILES[part] for part in CHECKPOINT_ARRAYS}
# Folders below results/ that are kept, though the config may no longer name their content.
KEPT_FOLDERS = ("archive", "history", "jobs")
# The file in a checkpoint's folder that marks arrays as deleted by keep_checkpoints.
PRUNED = "pruned.json"
# Files about its steps that a segment writes next to its checkpoint.
SEGMENT_FILES = {"history": "history.csv", "timings": "timings.csv"}
# Folder of a run with snapshots within a segment: no artifact, and deleted when the run is complete.
SNAPSHOTS = "snapshots"


# Splits that no model is trained on: the first is for selection, the second only for reports.
HELD_OUT = SPLITS[1:]
TEST = HELD_OUT[1]
# End of the name of a set of documents whose responses are scored.
OF_RESPONSES = ", responses"
# Folder of models from checkpoints, for evaluation; no artifact.
EXPORTED = "<results>/evaluation/checkpoints"
# Folder below results/ of the models that are finetuned on tasks.
TASKS = "evaluation/tasks"
CARD = "README.md"  # file name of the card of an artifact
# Figures of a published run that the config may give: their names, and whether higher is better.
PUBLISHED_FIGURES = {
    "train_loss": ("train loss", False),
    "train_accuracy": ("train accuracy", True),
    "validation_loss": ("validation loss of the best checkpoint", False),
    "validation_accuracy": ("validation accuracy of the best checkpoint", True),
    "seconds_per_step": ("seconds per step, median", False),
}

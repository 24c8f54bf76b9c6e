"""Read a sample of a dataset of the Hugging Face Hub, and what a model there says of itself."""

from itertools import islice
from pathlib import Path

from tpulm.core import hub
from tpulm.core.errors import UserError
from tpulm.core.hub import answer_of
from tpulm.corpus.files import import_datasets

from newconfig.files import SPLITS

HUB = "hf://"
ALLOWED = "hf://OWNER/NAME or hf://OWNER/NAME/CONFIGURATION"
MOST = 16_000_000  # characters that are read


def read_dataset(address: str) -> tuple[dict, list[dict], list[dict], float]:
    """Return the keys of a dataset's newest revision, its first rows, some of its test split, and the share of it."""
    import huggingface_hub

    datasets, rows, size, share = import_datasets(), list[dict](), 0, 1.0
    parts = address.removeprefix(HUB).removeprefix("datasets/").strip("/").split("/")
    dataset, name = "/".join(parts[:2]), "/".join(parts[2:]) or None
    try:
        told = huggingface_hub.HfApi().dataset_info(dataset, files_metadata=True)
        loaded = datasets.load_dataset(dataset, name, revision=told.sha, streaming=True)
        splits = {SPLITS[split]: split for split in loaded if split in SPLITS}
        splits.setdefault("train", next(iter(loaded)))
        test = list(islice(loaded[splits["test"]], 100)) if "test" in splits else []
        for row in loaded[splits["train"]]:
            if size > MOST:
                stored = sum(file.size or 0 for file in told.siblings)
                share = min(1.0, size / max(size, 2 * stored))  # Parquet takes half of the bytes of its text, about
                break
            rows.append(row)
            size += sum(len(str(value)) for value in row.values())
    except Exception as error:  # network, credentials, no such dataset or configuration, files that cannot be read
        if answer := answer_of(error):
            raise UserError(f"PATH is {address}, {answer}.") from None
        raise UserError(f"{address} cannot be read ({hub.reason_of(error)}); allowed: {ALLOWED}.") from None
    keys = {"source": "hub", "dataset": dataset, "name": name, "revision": told.sha, "splits": splits}
    return {key: value for key, value in keys.items() if value}, rows, test, share


def newest_model(address: str) -> tuple[Path, str]:
    """Return a folder with config and tokenizer of a model's newest revision, and the revision. Raises UserError."""
    import huggingface_hub

    source = f"--finetune is {address}"
    try:
        revision = huggingface_hub.HfApi().model_info(address.removeprefix(HUB)).sha
    except Exception as error:  # network, credentials, no such model
        raise hub.not_fetched(source, error) from None
    return hub.fetch(address, revision, source, ["config.json", "assets/tokenizer/*", *hub.TOKENIZER]), revision

"""Hubs of models and datasets: how files are fetched, and what is said where they cannot be."""

import os
from pathlib import Path

from tpulm.core.errors import UserError, first_line

# Files of a tokenizer, as transformers saves it; none of them is a pickle.
TOKENIZER = ["*.json", "*.jinja", "*.model", "*.txt"]


def named_source(where: str, name: str, revision: str | None) -> str:
    """Return the beginning of a sentence about what a config key names."""
    return f"{where} is {name} at revision {revision}" if revision else f"{where} is {name}"


def fetch(address: str, revision: str | None, given: str, patterns: list[str] | None = None) -> Path:
    """Return a local folder with the files of a model or a tokenizer.

    address   a folder, which is returned as it is; OWNER/NAME or hf://OWNER/NAME on the Hugging Face Hub; or
              kaggle://OWNER/MODEL/keras/VARIANT/VERSION
    revision  commit on the Hugging Face Hub
    given     opens a sentence about it, see `named_source`
    patterns  of the names of the files that are fetched from the Hugging Face Hub; None for all

    Raises UserError where they cannot be fetched.
    """
    if os.path.isdir(address):
        return Path(address)
    try:
        if address.startswith("kaggle://"):
            import kagglehub

            return Path(kagglehub.model_download(address.removeprefix("kaggle://")))
        import huggingface_hub

        name = address.removeprefix("hf://")
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # of any of the libraries that fetch
        raise not_fetched(given, error) from None


def not_fetched(given: str, error: Exception) -> UserError:
    """Return the error that says why something was not fetched, and what helps, by the answer of its hub."""
    from huggingface_hub import errors

    answers: dict[type[Exception], str] = {
        errors.GatedRepoError: "which asks for terms to be accepted: accept them on its page, and set HF_TOKEN",
        errors.RevisionNotFoundError: "which its hub does not have at this revision",
        errors.RepositoryNotFoundError: "which its hub does not have, or does not show: HF_TOKEN opens what is private",
    }
    causes = [cause for cause in (error, error.__cause__, error.__context__) if cause]
    for kind, answer in answers.items():
        if any(isinstance(cause, kind) for cause in causes):
            return UserError(f"{given}, {answer}.")
    return UserError(
        f"{given}, which could not be downloaded ({type(error).__name__}: {first_line(error)}); it needs the network "
        "or a copy in the cache and, where it is not public or asks for terms, accepted terms and HF_TOKEN, or "
        "KAGGLE_USERNAME and KAGGLE_KEY."
    )

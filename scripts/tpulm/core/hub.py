"""Fetch files from the hubs of models and datasets, and explain why a download failed."""

import os
from pathlib import Path

from tpulm.core.errors import UserError, first_line

# Patterns of the files of a tokenizer that transformers saved; none of them is a pickle.
TOKENIZER = ["*.json", "*.jinja", "*.model", "*.txt"]


def named_source(where: str, name: str, revision: str | None) -> str:
    """Return the beginning of a message: a config key, and its value with the revision."""
    return f"{where} is {name} at revision {revision}" if revision else f"{where} is {name}"


def fetch(address: str, revision: str | None, source: str, patterns: list[str] | None = None) -> Path:
    """Return a local folder with the files of a model or a tokenizer.

    address   a local folder, which is returned; OWNER/NAME or hf://OWNER/NAME on the Hugging Face Hub; or
              kaggle://OWNER/MODEL/keras/VARIANT/VERSION
    revision  commit on the Hugging Face Hub
    source    beginning of the message, see `named_source`
    patterns  names of the files to fetch from the Hugging Face Hub; None for all

    Raises UserError if they cannot be fetched.
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
    except Exception as error:  # each library raises its own
        raise not_fetched(source, error) from None


def not_fetched(source: str, error: Exception) -> UserError:
    """Return the UserError that says why a download failed, and what helps, by the answer of its hub."""
    from huggingface_hub import errors

    answers: dict[type[Exception], str] = {
        errors.GatedRepoError: "which asks for terms to be accepted: accept them on its page, and set HF_TOKEN",
        errors.RevisionNotFoundError: "which its hub does not have at this revision",
        errors.RepositoryNotFoundError: "which its hub does not have, or does not show: HF_TOKEN opens what is private",
    }
    causes = [cause for cause in (error, error.__cause__, error.__context__) if cause]
    for kind, answer in answers.items():
        if any(isinstance(cause, kind) for cause in causes):
            return UserError(f"{source}, {answer}.")
    return UserError(
        f"{source}, which could not be downloaded ({type(error).__name__}: {first_line(error)}); it needs the network "
        "or a copy in the cache and, where it is not public or asks for terms, accepted terms and HF_TOKEN, or "
        "KAGGLE_USERNAME and KAGGLE_KEY."
    )

"""Fetch files from the hubs of models and datasets, and explain why a download failed."""

import os
from pathlib import Path

from tpulm.core.errors import UserError, causes, first_line

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
    """Return the UserError that says why a download failed, and what helps."""
    if answer := answer_of(error):
        return UserError(f"{source}, {answer}.")
    return UserError(
        f"{source}, which could not be downloaded ({reason_of(error)}); it needs the network "
        "or a copy in the cache and, where it is not public or asks for terms, accepted terms and HF_TOKEN, or "
        "KAGGLE_USERNAME and KAGGLE_KEY."
    )


def reason_of(error: Exception) -> str:
    """Return in a line why something was not downloaded, for an error that `answer_of` does not know."""
    import requests

    # Its text is a chain of objects of two libraries.
    if type(error) is requests.ConnectionError:
        return "its hub cannot be reached"
    return f"{type(error).__name__}: {first_line(error)}"


def dataset_error(name: str, revision: str | None, error: Exception) -> Exception:
    """Return what the hub answers on a dataset if `answer_of` knows it, because `datasets` drops it; else `error`."""
    import huggingface_hub

    try:
        huggingface_hub.HfApi().dataset_info(name, revision=revision)
    except Exception as answer:  # whatever the network raises
        return answer if answer_of(answer) else error
    return error


# What helps where a hub answers with a status of HTTP, as the end of a sentence.
ANSWERS = {
    401: "whose hub does not accept the token: set another HF_TOKEN, or KAGGLE_USERNAME and KAGGLE_KEY",
    403: "which its hub does not let you read: accept the terms on its page, and set HF_TOKEN, or KAGGLE_USERNAME and "
    "KAGGLE_KEY, of an account that may read it",
    404: "which its hub does not have, or does not show: check the name; HF_TOKEN opens what is private",
    429: "whose hub had too many requests: wait some minutes, and run again; HF_TOKEN allows more of them",
}


def answer_of(error: Exception) -> str | None:
    """Return why a hub did not send something, and what helps, as the end of a sentence; None if it is not known."""
    from huggingface_hub import constants, errors

    for cause in causes(error):
        if isinstance(cause, errors.GatedRepoError):
            return "which asks for terms to be accepted: accept them on its page, and set HF_TOKEN"
        if isinstance(cause, errors.RevisionNotFoundError):
            return "which its hub does not have at this revision"
        if isinstance(cause, errors.RepositoryNotFoundError):
            return ANSWERS[404]
        missing = isinstance(cause, errors.EntryNotFoundError)
        if isinstance(cause, errors.OfflineModeIsEnabled) or (missing and constants.HF_HUB_OFFLINE):
            return "which is not in the cache, while HF_HUB_OFFLINE forbids the network: unset it, and run again"
        if isinstance(cause, OSError) and cause.errno and isinstance(cause.filename, str):
            folder = "HF_HOME, or KAGGLEHUB_CACHE, can name another folder"
            return f"which cannot be kept in the cache ({cause.strerror}: {cause.filename}); {folder}"
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        if status >= 500:
            return f"whose hub is out of order (status {status}): run again later"
        if status in ANSWERS and not missing:
            return ANSWERS[status]
    return None

"""Load a pretrained tokenizer without running any code that comes with it."""

import os
from pathlib import Path

from transformers import AutoTokenizer

from tpulm.core.errors import UserError
from tpulm.core.untrusted import NO_CODE, refuse_code
from tpulm.tokenization.folder import REQUIRED


def save_pretrained(name: str, revision: str | None, folder: str, where: str = "tokenizer.pretrained") -> int:
    """Load a tokenizer and save it to `folder` as TOKENIZER_FILES of config.artifacts; return its size.

    name      local folder, or name on the Hugging Face hub
    revision  commit on the hub; None for a local folder
    where     the config key that names it

    Raises UserError when it cannot be loaded, is no tokenizer of the `tokenizers` library, or lacks a special token.
    """
    pinned = f"{name} at revision {revision}" if revision else name
    if os.path.isdir(name):
        refuse_code(Path(name), f"{where} is {name}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, use_fast=True, trust_remote_code=False)
    except Exception as error:  # the libraries raise OSError, ValueError, KeyError and plain Exception alike
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"{where} is {pinned}, which cannot be loaded ({reason.rstrip('.')}); allowed: a folder with "
            "tokenizer.json, or a name on the Hugging Face hub, within reach of the network."
        ) from None
    if tokenizer.init_kwargs.get("auto_map"):
        raise UserError(f"{where} is {pinned}, which asks to run code of its own (auto_map); {NO_CODE}.")
    if not tokenizer.is_fast:
        raise UserError(f"{where} is {pinned}, which has no tokenizer.json; allowed: one that has.")
    missing = [role for role in REQUIRED if getattr(tokenizer, role) is None]
    if missing:
        raise UserError(
            f"{where} is {pinned}, which has no {missing[0]}; allowed: a tokenizer with {', '.join(REQUIRED)}."
        )
    # transformers writes them into tokenizer.json; a document is packed whole.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    # Where it came from is no part of what it is.
    tokenizer.init_kwargs.pop("name_or_path", None)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)

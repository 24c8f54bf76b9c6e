"""What comes from a hub is pinned to a commit, so that it cannot change."""

import os
from collections.abc import Mapping

from tpulm.core.errors import UserError
from tpulm.specs.texts import GEMMA, chat_template_files, sources_of


def check_dataset(where: str, recipe: Mapping) -> None:
    """Check that a dataset of the hub is pinned: of a text, a task or a set of pairs. Raises UserError."""
    if "dataset" in recipe and "revision" not in recipe and not os.path.isdir(recipe["dataset"]):
        raise UserError(
            f"{where}.revision is missing; a dataset on the hub must be pinned to a commit of 40 hexadecimal digits, "
            "so that it cannot change."
        )


def check_chat(where: str, text: Mapping) -> None:
    """Check that conversations and a chat template come together, and that the template is pinned. Raises UserError."""
    chats = [key for key, recipe in sources_of(where, text).values() if "messages" in recipe]
    template = text.get("chat_template")
    allowed = f"allowed: {GEMMA}, a .jinja file, or a tokenizer that has one (a local folder, or a name on the hub)"
    if chats and template is None:
        raise UserError(f"{where}.chat_template is missing; {chats[0]}.messages requires it; {allowed}.")
    if template is None:
        return
    if not chats:
        raise UserError(f"{where}.chat_template is set, but no source has messages.")
    files = chat_template_files(template)
    if template == GEMMA or (files and os.path.isfile(files[0])):
        return
    if files or os.path.isdir(template):
        raise UserError(f"{where}.chat_template is {template}, which has no chat template; {allowed}.")
    if "chat_template_revision" not in text:
        raise UserError(
            f"{where}.chat_template is {template}, which is not a local file or folder; a name on the hub needs "
            f"{where}.chat_template_revision, a commit of 40 hexadecimal digits."
        )

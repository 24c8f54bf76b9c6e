"""Train a SentencePiece vocabulary of byte-pair encoding for a causal model."""

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import sentencepiece

from tpulm.core.errors import UserError

SPECIAL = {"pad": 0, "eos": 1, "bos": 2, "unk": 3}  # ids as in the published Gemma vocabularies
MARKS = ("<bos>", "<eos>")  # pieces of bos and eos in those vocabularies
# Runs of spaces are pieces of their own, as in Gemma's, so that indentation costs one token.
USER_DEFINED = ["\n", *("\u2581" * n for n in range(2, 17))]
LINE_CHARACTERS = 4_000  # SentencePiece skips a line that is longer than it expects


def train_vocabulary(documents: Iterable[str], vocab_size: int, where: str, marks: tuple[str, str] = MARKS) -> bytes:
    """Train a SentencePiece model of byte-pair encoding (Sennrich 2016), and return its serialized proto.

    Bytes stand for rare characters, as in the published vocabularies of Gemma; llama.cpp's converter expects such a
    model for the architectures that are trained here.

    where  config key of the size. Raises UserError, naming it, for an impossible size.
    marks  pieces before and after a document
    """
    specials: dict[str, Any] = {f"{name}_id": index for name, index in SPECIAL.items()}
    specials |= {f"{name}_piece": f"<{name}>" for name in SPECIAL} | {"bos_piece": marks[0], "eos_piece": marks[1]}
    proto = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for document in documents for line in lines(document)),
            model_writer=proto,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            user_defined_symbols=USER_DEFINED,
            max_sentence_length=4 * LINE_CHARACTERS + 4,  # bytes
            num_threads=1,  # as the rule requests
            minloglevel=1,
            **specials,
        )
    except RuntimeError as error:
        text = str(error)
        too_big = re.search(r"Vocabulary size too high \((\d+)\).*<= (\d+)", text)
        too_small = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", text)
        if too_big:
            raise UserError(f"{where} is {vocab_size}; the text has pieces for at most {too_big[2]}.") from None
        if too_small:
            raise UserError(f"{where} is {vocab_size}; the text's characters need at least {too_small[2]}.") from None
        raise
    return proto.getvalue()


def lines(document: str) -> Iterator[str]:
    """Yield the lines of a document, long ones in parts."""
    for line in document.split("\n"):
        for start in range(0, len(line), LINE_CHARACTERS):
            yield line[start : start + LINE_CHARACTERS]

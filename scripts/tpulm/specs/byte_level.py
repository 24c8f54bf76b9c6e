"""Byte-level BPE of causal language models as published: how a text is cut into words, and what goes with that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The words of Llama 3 and of Qwen differ in how many digits one has.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class ByteLevel:
    """The rules of a vocabulary of byte-level BPE.

    name         as `tokenizer.pre_tokenizer` has it
    words        the words that merges stay inside of, a regular expression
    gguf         what llama.cpp calls these rules
    nfc          whether text is brought into Unicode's composed form
    whole_words  whether a word that is a piece is that piece, whatever its merges
    """

    name: str
    words: str
    gguf: str
    nfc: bool = False
    whole_words: bool = False


LLAMA3 = ByteLevel("llama3", WORDS.replace("DIGITS", r"\p{N}{1,3}"), "llama-bpe", whole_words=True)
QWEN = ByteLevel("qwen", WORDS.replace("DIGITS", r"\p{N}"), "qwen2", nfc=True)
RULES = {rules.name: rules for rules in (LLAMA3, QWEN)}
# By keras-hub's class of the tokenizer.
PUBLISHED = {
    "Llama3Tokenizer": LLAMA3,
    "QwenTokenizer": QWEN,
    "QwenMoeTokenizer": QWEN,
    "Qwen3Tokenizer": QWEN,
    "Qwen3MoeTokenizer": QWEN,
}


def rules_of(tokenizer: Mapping[str, Any]) -> ByteLevel | None:
    """Return the rules that a tokenizer.json of the `tokenizers` library follows; None where these are others."""
    steps = (tokenizer["pre_tokenizer"] or {}).get("pretokenizers", [])
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    found = (patterns, tokenizer["normalizer"] == {"type": "NFC"}, tokenizer["model"].get("ignore_merges", False))
    return next((one for one in RULES.values() if found == ([one.words], one.nfc, one.whole_words)), None)


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of byte-level BPE that is trained here.

    tokenizer  keras-hub's class
    pad        the special token for padding, id 0 as keras-hub has it
    eos        the special token after a document
    bos        the one before a document; None where there is none
    others     special tokens that stand in texts
    """

    tokenizer: str
    pad: str
    eos: str
    bos: str | None = None
    others: tuple[str, ...] = ()

    @property
    def rules(self) -> ByteLevel:
        """What is published with the class."""
        return PUBLISHED[self.tokenizer]

    @property
    def special(self) -> list[str]:
        """The special tokens, which a text is cut at and which have the lowest ids."""
        return [self.pad, self.eos, *([self.bos] if self.bos else []), *self.others]


# As published, those that keras-hub's class has; and one for padding, where keras-hub takes whatever has id 0.
LLAMA3_VOCABULARY = Vocabulary(
    "Llama3Tokenizer",
    pad="<|finetune_right_pad_id|>",
    eos="<|end_of_text|>",
    bos="<|begin_of_text|>",
    others=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
QWEN2_VOCABULARY = Vocabulary("QwenTokenizer", pad="<|fim_pad|>", eos="<|endoftext|>")
QWEN3_VOCABULARY = Vocabulary("Qwen3Tokenizer", pad="<|endoftext|>", eos="<|im_end|>")

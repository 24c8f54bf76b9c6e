"""Byte-level BPE of published causal language models: how a text is cut into words, and special tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The words of Llama 3 and of Qwen differ in how many digits one has. Those of Qwen 3.5 have marks, such as accents.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class ByteLevel:
    """The rules of a vocabulary of byte-level BPE.

    name         value of `tokenizer.pre_tokenizer`
    words        regular expression of the words, within which pieces are merged
    gguf         llama.cpp's name of these rules
    nfc          whether text is normalized to Unicode's composed form
    whole_words  whether a word that is a piece is not cut, whatever its merges
    """

    name: str
    words: str
    gguf: str
    nfc: bool = False
    whole_words: bool = False


LLAMA3 = ByteLevel("llama3", WORDS.replace("DIGITS", r"\p{N}{1,3}"), "llama-bpe", whole_words=True)
QWEN = ByteLevel("qwen", WORDS.replace("DIGITS", r"\p{N}"), "qwen2", nfc=True)
RULES = {rules.name: rules for rules in (LLAMA3, QWEN)}
# Those below are of published models only.
MARKS = WORDS.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
QWEN35 = ByteLevel("qwen3.5", MARKS.replace("DIGITS", r"\p{N}"), "qwen35", nfc=True)
GPT2 = ByteLevel("gpt2", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", "gpt-2")
KNOWN = (*RULES.values(), QWEN35, GPT2)
# Rules by keras-hub's class of the tokenizer.
PUBLISHED = {
    "Llama3Tokenizer": LLAMA3,
    "QwenTokenizer": QWEN,
    "QwenMoeTokenizer": QWEN,
    "Qwen3Tokenizer": QWEN,
    "Qwen3MoeTokenizer": QWEN,
    "Qwen3_5Tokenizer": QWEN35,
    "Qwen3_5MoeTokenizer": QWEN35,
    "SmolLM3Tokenizer": LLAMA3,
    "GPT2Tokenizer": GPT2,
    "OPTTokenizer": GPT2,
}


def rules_of(tokenizer: Mapping[str, Any]) -> ByteLevel | None:
    """Return the rules that a tokenizer.json of the `tokenizers` library follows; None for other rules."""
    first = tokenizer["pre_tokenizer"] or {}
    steps = first.get("pretokenizers", [])
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    whole = first.get("use_regex", True) and not first.get("add_prefix_space", True)  # with the library's defaults
    if first.get("type") == "ByteLevel" and whole:
        patterns = [GPT2.words]  # the pattern that is built into the library
    key = (patterns, tokenizer["normalizer"] == {"type": "NFC"}, tokenizer["model"].get("ignore_merges", False))
    return next((rules for rules in KNOWN if key == ([rules.words], rules.nfc, rules.whole_words)), None)


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of byte-level BPE that is trained here.

    tokenizer  keras-hub's class
    pad        the special token for padding, id 0 as keras-hub has it
    bos, eos   special tokens before and after a document; bos is None if there is none
    others     special tokens within texts
    """

    tokenizer: str
    pad: str
    eos: str
    bos: str | None = None
    others: tuple[str, ...] = ()

    @property
    def rules(self) -> ByteLevel:
        """The published rules of the class."""
        return PUBLISHED[self.tokenizer]

    @property
    def special(self) -> list[str]:
        """All special tokens, which have the lowest ids."""
        return [self.pad, self.eos, *([self.bos] if self.bos else []), *self.others]


# The special tokens of keras-hub's classes, as published, and one for padding, for which keras-hub takes id 0.
LLAMA3_VOCABULARY = Vocabulary(
    "Llama3Tokenizer",
    pad="<|finetune_right_pad_id|>",
    eos="<|end_of_text|>",
    bos="<|begin_of_text|>",
    others=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
QWEN2_VOCABULARY = Vocabulary("QwenTokenizer", pad="<|fim_pad|>", eos="<|endoftext|>")
QWEN3_VOCABULARY = Vocabulary("Qwen3Tokenizer", pad="<|endoftext|>", eos="<|im_end|>")

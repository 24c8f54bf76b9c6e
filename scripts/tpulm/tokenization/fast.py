"""Tokenizers of causal models in the format of the `tokenizers` library, as AutoTokenizer loads them.

The ids are the trainer's, with one exception. Where a text spells a special token, such as <eos>, transformers reads
the token, SentencePiece the characters; and so where it spells a byte, such as <0x0A>, with unknown characters.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from tpulm.core.errors import UserError
from tpulm.core.files import write_json
from tpulm.tokenization.causal import KerasHub, SentencePiece
from tpulm.tokenization.folder import NO_LIMIT

SPACE = "\u2581"  # SentencePiece's mark for a space
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)  # types of pieces
BPE = 2  # type of a model


def fast_tokenizer(tokenizer: SentencePiece | KerasHub) -> Tokenizer:
    """Return the same tokenizer as one of the `tokenizers` library, which puts <bos> before a text.

    Raises UserError for one that has no counterpart there.
    """
    if isinstance(tokenizer, SentencePiece):
        fast = from_sentencepiece(tokenizer.processor.serialized_model_proto())
    elif getattr(tokenizer.tokenizer, "proto", None):
        fast = from_sentencepiece(tokenizer.tokenizer.proto)
    elif tokenizer.behind is not None:
        fast = Tokenizer.from_str(tokenizer.behind.to_str())
    else:
        raise UserError(
            f"the base model's {type(tokenizer.tokenizer).__name__} cannot be saved for transformers; allowed: "
            "SentencePiece or byte-pair encoding tokenizers."
        )
    bos = tokenizer.special["bos"]
    if bos is not None:
        piece = tokenizer.piece(bos)
        fast.post_processor = processors.TemplateProcessing(
            single=f"{piece} $A", pair=f"{piece} $A {piece} $B", special_tokens=[(piece, bos)]
        )
    return fast


def is_byte_level(tokenizer: SentencePiece | KerasHub) -> bool:
    """Return whether a tokenizer is byte-level BPE, such as Llama 3's, and not SentencePiece."""
    return isinstance(tokenizer, KerasHub) and not getattr(tokenizer.tokenizer, "proto", None)


def from_sentencepiece(serialized: bytes) -> Tokenizer:
    """Return the tokenizer of a serialized SentencePiece model of BPE, which adds no special tokens.

    Raises UserError for another model, and for one that normalizes text otherwise than by writing spaces as a mark.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(serialized)  # type: ignore[attr-defined]
    spec = proto.normalizer_spec
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    own = [piece for piece, _, type_ in pieces if type_ == USER_DEFINED]
    found = {
        "is no byte-pair encoding": proto.trainer_spec.model_type != BPE,
        "normalizes text": spec.precompiled_charsmap or spec.remove_extra_whitespaces,
        "has user-defined pieces and adds a space before a text": spec.add_dummy_prefix and own,
    }
    for what, is_so in found.items():
        if is_so:
            raise UserError(
                f"the base model's SentencePiece vocabulary {what}, which cannot be written for transformers; allowed: "
                "byte-pair encoding without normalization, and user-defined pieces only without a space before a text."
            )
    tokenizer = Tokenizer(byte_pairs(pieces))
    marked = normalizers.Replace(" ", SPACE)
    prefixed = spec.add_dummy_prefix
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), marked]) if prefixed else marked
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    control = [piece for piece, _, type_ in pieces if type_ in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in control])
    # SentencePiece cuts a text at these before all else.
    tokenizer.add_tokens([AddedToken(piece, normalized=True, special=False) for piece in own])
    return tokenizer


def chat_template(tokenizer: SentencePiece | KerasHub, described: Mapping[str, Any]) -> str | None:
    """Return a chat template as transformers needs it to write texts as they are learned here, which <bos> begins.

    described  as rule fetch_chat_template writes it

    None for a template of which that is not known, or that writes other special tokens than the tokenizer's.
    """
    pieces = {f"{role}_token": None if i is None else tokenizer.piece(i) for role, i in tokenizer.special.items()}
    if "begins" not in described or any(described[name] != pieces[name] for name in described["between"]):
        return None
    own, bos, template = described["bos_token"], pieces["bos_token"], described["template"]
    if described["begins"] and own != bos and own in template:  # as text, not as the variable
        return None
    begin = "" if described["begins"] or bos is None else "{{- bos_token }}"
    # As where texts are written here: a template that is only a file has no token, and there is no clock.
    begin += "{%- set bos_token = '' %}" if None in (own, bos) else ""
    begin += "{%- set strftime_now = undefined %}" if "strftime_now" in template else ""
    return f"{begin}{{#- Written as it was learned. #}}\n{template}"


def byte_pairs(pieces: list[tuple[str, float, int]]) -> models.BPE:
    """Return the BPE model of pieces, as (text, score, type); SentencePiece merges what has the highest score first."""
    ids = {piece: index for index, (piece, _, _) in enumerate(pieces)}
    mergeable = {piece for piece, _, type_ in pieces if type_ == NORMAL}
    merges = []
    for piece, score, type_ in pieces:
        if type_ == NORMAL:
            pairs = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
            merges += [(-score, ids[a], ids[b], (a, b)) for a, b in pairs if a in mergeable and b in mergeable]
    unknown = next(piece for piece, _, type_ in pieces if type_ == UNKNOWN)
    fallback = any(type_ == BYTE for _, _, type_ in pieces)
    ordered = [pair for *_, pair in sorted(merges)]
    return models.BPE(vocab=ids, merges=ordered, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)


def save_fast(tokenizer: SentencePiece | KerasHub, folder: Path) -> None:
    """Write a tokenizer's files; SentencePiece's own, tokenizer.model, for other programs than transformers.

    Raises UserError, see `fast_tokenizer`.
    """
    fast = fast_tokenizer(tokenizer)
    fast.save(str(folder / "tokenizer.json"))
    special = {f"{role}_token": fast.id_to_token(i) for role, i in tokenizer.special.items() if i is not None}
    if isinstance(tokenizer, SentencePiece):
        special["unk_token"] = fast.id_to_token(tokenizer.processor.unk_id())
        (folder / "tokenizer.model").write_bytes(tokenizer.processor.serialized_model_proto())
    settings = {
        "clean_up_tokenization_spaces": False,  # True would delete the spaces before punctuation
        "model_input_names": ["input_ids", "attention_mask"],  # otherwise token_type_ids, too, which models refuse
        "model_max_length": NO_LIMIT,
        "padding_side": "left",  # what is generated follows the prompt
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "special_tokens_map.json", special)
    write_json(folder / "tokenizer_config.json", settings | special)

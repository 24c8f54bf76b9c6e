"""Convert tokenizers of causal models to the format of the `tokenizers` library, and to folders for AutoTokenizer.

The ids are those of the original tokenizer, with one exception: where a text spells a special token, such as <eos>,
transformers reads the token and SentencePiece the characters. So it is with a byte, such as <0x0A>, and unknown
characters.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from tpulm.compat.keras_hub_tokenizers import tokenizer_of
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.specs.byte_level import PUBLISHED
from tpulm.tokenization.byte_level import cut_words
from tpulm.tokenization.folder import NO_LIMIT
from tpulm.tokenization.tokenizer import SPACE, TextTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)  # types of pieces
BPE = 2  # type of a model


# Tokenizers of keras-hub that are just a SentencePiece model.
PLAIN = ("GemmaTokenizer", "Gemma3Tokenizer", "LlamaTokenizer", "MistralTokenizer")


def sentencepiece_file(preset: Path) -> Path | None:
    """Return the SentencePiece file of a preset folder; None for a tokenizer of another kind."""
    path = preset / "assets" / "tokenizer" / "vocabulary.spm"
    return path if path.is_file() and read_json(preset / "tokenizer.json")["class_name"] in PLAIN else None


def convert(vocabulary: Path, start: Callable[[], None] = lambda: None) -> Tokenizer:
    """Return the tokenizer of a causal model in the library `tokenizers`, which puts bos and eos around a text.

    vocabulary  a file, as it is trained here, or a preset folder
    start       is called before Keras is imported

    Raises UserError for a tokenizer that has no counterpart in the library.
    """
    if vocabulary.suffix == ".json":
        return Tokenizer.from_file(str(vocabulary))
    file = sentencepiece_file(vocabulary) if vocabulary.is_dir() else vocabulary
    if file:
        fast, ids = from_sentencepiece(file.read_bytes())
    else:
        start()
        import keras_hub

        tokenizer = cut_words(keras_hub.tokenizers.Tokenizer.from_preset(str(vocabulary)))
        ids = (tokenizer.start_token_id, tokenizer.end_token_id, tokenizer.pad_token_id)
        backend = tokenizer_of(tokenizer)
        if getattr(tokenizer, "proto", None):
            fast, _ = from_sentencepiece(tokenizer.proto)
        elif backend is not None and type(tokenizer).__name__ in PUBLISHED:
            fast = Tokenizer.from_str(backend.to_str())
        else:
            raise UserError(
                f"the base model's {type(tokenizer).__name__} has no counterpart in the library tokenizers with the "
                f"ids of transformers; allowed: SentencePiece, {', '.join(PUBLISHED)}."
            )
    bos, eos, pad = ids
    around = [(fast.id_to_token(token), token) for token in (bos, eos) if token is not None]
    before = [] if bos is None else [around[0][0]]
    fast.post_processor = processors.TemplateProcessing(single=[*before, "$A", around[-1][0]], special_tokens=around)
    fast.enable_padding(pad_id=pad, pad_token=fast.id_to_token(pad))
    return fast


def from_sentencepiece(serialized: bytes) -> tuple[Tokenizer, tuple[int, int, int]]:
    """Return the tokenizer of a SentencePiece BPE, and its ids for bos, eos and pad. Raises UserError for others."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(serialized)  # type: ignore[attr-defined]
    spec = proto.normalizer_spec
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    user_defined = [piece for piece, _, type_ in pieces if type_ == USER_DEFINED]
    kind = proto.trainer_spec.model_type
    obstacles = {
        f"has the model type {proto.trainer_spec.ModelType.Name(kind)}": kind != BPE,
        "normalizes text": spec.precompiled_charsmap or spec.remove_extra_whitespaces,
        "has user-defined pieces and adds a space before a text": spec.add_dummy_prefix and user_defined,
    }
    for what, is_so in obstacles.items():
        if is_so:
            raise UserError(
                f"the base model's SentencePiece vocabulary {what}, which cannot be written for transformers; allowed: "
                "BPE without normalization, and user-defined pieces only without a space before a text."
            )
    tokenizer = Tokenizer(byte_pairs(pieces))
    marked = normalizers.Replace(" ", SPACE)
    prefixed = spec.add_dummy_prefix
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), marked]) if prefixed else marked
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    control = [piece for piece, _, type_ in pieces if type_ in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in control])
    # SentencePiece cuts a text at user-defined pieces first.
    tokenizer.add_tokens([AddedToken(piece, normalized=True, special=False) for piece in user_defined])
    trained = proto.trainer_spec
    # keras-hub pads with 0 where a vocabulary has no piece for it.
    return tokenizer, (trained.bos_id, trained.eos_id, max(0, trained.pad_id))


def chat_template(tokenizer: TextTokenizer, described: Mapping[str, Any]) -> str | None:
    """Return the Jinja chat template that makes transformers write what training wrote; None if it cannot be known.

    described  as rule fetch_chat_template writes it

    It writes <bos> first. Returns None if `described` lacks the facts of the template, or its special tokens are not
    those of the tokenizer.
    """
    pieces = {f"{role}_token": None if i is None else tokenizer.piece(i) for role, i in tokenizer.special.items()}
    if "begins" not in described or any(described[name] != pieces[name] for name in described["between"]):
        return None
    template_bos, bos, template = described["bos_token"], pieces["bos_token"], described["template"]
    if described["begins"] and template_bos != bos and template_bos in template:  # as text, not as the variable
        return None
    begin = "" if described["begins"] or bos is None else "{{- bos_token }}"
    # Training rendered the template so: a template that is only a file has no token, and there is no clock.
    begin += "{%- set bos_token = '' %}" if None in (template_bos, bos) else ""
    begin += "{%- set strftime_now = undefined %}" if "strftime_now" in template else ""
    return f"{begin}{{#- Written as it was learned. #}}\n{template}"


def byte_pairs(pieces: list[tuple[str, float, int]]) -> models.BPE:
    """Return the BPE model of pieces, as (text, score, type); SentencePiece merges to the highest score first."""
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


def save_folder(tokenizer: TextTokenizer, preset: Path, folder: Path) -> None:
    """Write a tokenizer's files for transformers, and SentencePiece's tokenizer.model of the preset, if it has one."""
    fast = tokenizer.for_transformers()
    fast.save(str(folder / "tokenizer.json"))
    special = {f"{role}_token": tokenizer.piece(i) for role, i in tokenizer.special.items() if i is not None}
    file = sentencepiece_file(preset)
    if file:
        special["unk_token"] = fast.model.unk_token
        shutil.copyfile(file, folder / "tokenizer.model")
    settings = {
        "clean_up_tokenization_spaces": False,  # True would delete the spaces before punctuation
        "model_input_names": ["input_ids", "attention_mask"],  # otherwise token_type_ids, too, which models refuse
        "model_max_length": NO_LIMIT,
        "padding_side": "left",  # what is generated follows the prompt
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "special_tokens_map.json", special)
    write_json(folder / "tokenizer_config.json", settings | special)

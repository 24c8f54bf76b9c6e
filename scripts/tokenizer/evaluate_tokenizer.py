"""Evaluate a tokenizer on the validation split, or on a sample of a very long one.

input.corpus              Parquet files with a column `text`, one document per row
input.lengths             NumPy arrays: characters of each document
input.tokenizer           tokenizer.json
input.special_tokens_map  special_tokens_map.json
input.training            training.json, for a tokenizer of the workflow
input.record              corpus.json, if the corpus has several sources
output.metrics            JSON: those of tpulm.tokenization.folder.tokenizer_metrics and of training.json;
                          uncovered_rate, share of the characters, without white space, that have no piece
output.pieces             JSON: keys of tpulm.tokenization.folder.piece_statistics; scripts, see
                          tpulm.tokenization.writing.by_script; sources, if there are several: source, words,
                          characters, tokens, tokens_per_word, characters_per_token
"""

import os

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job

MOST = 4  # limit of scripts, and of sources, that the terminal shows

with job(snakemake.log[0], snakemake.wildcards.tokenizer) as say:
    os.environ["RAYON_NUM_THREADS"] = str(snakemake.threads)

    from tpulm.corpus.documents import read_lengths, read_texts
    from tpulm.corpus.statistics import rows_by_source
    from tpulm.tokenization.folder import count_text, piece_statistics, sum_counts, tokenizer_metrics
    from tpulm.tokenization.sample import CHARACTERS, Sample
    from tpulm.tokenization.tokenizer import TextTokenizer
    from tpulm.tokenization.writing import by_script

    opened = TextTokenizer.load(snakemake.input.tokenizer, snakemake.input.special_tokens_map)
    tokenizer, ids = opened.fast, opened.special
    lengths = read_lengths(snakemake.input.lengths)
    chosen = Sample(lambda rows: read_texts(snakemake.input.corpus, rows), lengths, CHARACTERS, 0).chosen
    record = read_json(snakemake.input.record[0]) if snakemake.input.record else {}
    counts_by_source = {
        name: count_text(tokenizer, read_texts(snakemake.input.corpus, rows))
        for name, rows in rows_by_source(record, "validation", chosen).items()
    }
    totals = sum_counts(counts_by_source.values())
    figures = tokenizer_metrics(tokenizer, ids, totals)
    scripts = by_script(tokenizer, ids.get("unk"), totals.words)
    uncovered, characters = (sum(row[key] for row in scripts) for key in ("uncovered", "characters"))
    figures["uncovered_rate"] = uncovered / max(1, characters)
    by_source = counts_by_source.items() if record else ()
    sources = [{"source": name} | counts.figures() for name, counts in by_source if counts.words]
    trained = [read_json(path) for path in snakemake.input.training]
    metrics = {key: value for record in (figures, *trained) for key, value in record.items()}
    write_json(snakemake.output.metrics, metrics)
    pieces = piece_statistics(tokenizer, ids, totals)
    write_json(snakemake.output.pieces, pieces | {"scripts": scripts, "sources": sources})
    kinds = [*scripts[:MOST], *sources[:MOST]]
    each = ", ".join(f"{row.get('script') or row['source']} {row['tokens_per_word']:.2f}" for row in kinds)
    say(
        f"tokens per word {figures['tokens_per_word']:.2f} ({each}), unknown {figures['unknown_rate']:.2%}, only white "
        f"space {figures['whitespace_rate']:.1%}, pieces used {figures['vocabulary_used']:.0%}"
    )

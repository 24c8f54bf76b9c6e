"""Generate from the same prompts with the base model and the finetuned model, using the same random numbers.

Where the finetuning text has responses, also greedily from the prompts of held-out documents, to compare the responses
with those of the text.

input.base          preset folder
input.fingerprint   SHA-256 of each of its files
input.best          safetensors: tuned variables of the best checkpoint
input.tokenizer     tokenizer.json; none if the text has no responses
input.material      Parquet file of the held-out documents of the text, see tpulm.evaluation.material; none likewise
output.generations  JSON: sampling, and for each prompt the continuations before and after finetuning; cut, how many of
                    them the limit of tokens ended
output.responses    JSON: for each held-out prompt item, prompt, response, and the responses before and after; cut; and
                    long, if the text's response is too long for exact match
output.scores       JSON: model, kind (causal) and scores, see tpulm.specs.scores: exact match, if the text has
                    questions for tpulm.evaluation.exact_match
output.by_item      Parquet: score (its name), item, value
params.recipe       prompts, sampling (sampler, k, p, temperature, samples, seed; max_new_tokens, or max_length with the
                    prompt); method and keys of LoRA, seed, precision, mesh, layout, cpu_threads, host_device_count;
                    with material also key and path of the model, responses (limit of their number), characters (that
                    a document is cut at), sequence_length, batch_size, microbatches
"""

from tpulm.core.arrays import load_arrays
from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.specs.artifacts import TEST
from tpulm.specs.scores import CAUSAL
from tpulm.training.history import Stopwatch
from tpulm.training.opening import open_causal

recipe, run, inputs = snakemake.params.recipe, snakemake.wildcards.run, snakemake.input

with job(snakemake.log[0], f"finetune {run}") as say:
    stopwatch = Stopwatch()
    model, distribution = open_causal(f"finetune.runs.{run}", recipe, inputs.base, snakemake.resources)
    from tpulm.evaluation.exact_match import exact_match, generated, most_tokens, questions_of
    from tpulm.evaluation.item_means import write_scored
    from tpulm.evaluation.material import read_items
    from tpulm.models.sampling import Generator, count_cut
    from tpulm.models.variables import assign
    from tpulm.tokenization.tokenizer import TextTokenizer

    prompts, sampling, replicas = recipe["prompts"], recipe["sampling"], distribution.num_model_replicas
    items, questions = [], []
    for file in inputs.material:
        tokenizer, detokenize = TextTokenizer.load(*inputs.tokenizer), model.preprocessor.tokenizer.detokenize
        items = [item for item in read_items(file) if item.split == TEST][: recipe["responses"]]
        questions = list(questions_of(items, tokenizer, recipe["characters"], recipe["sequence_length"]))
        # Generated responses are decoded, so the text's response is encoded and decoded before the comparison.
        ids = tokenizer.encode([question.response for question in questions]) if questions else []
        decoded = map(str, map(detokenize, ids))
        questions = [question._replace(response=text) for question, text in zip(questions, decoded, strict=True)]
    generate = Generator(model, sampling, replicas)
    greedy = {"sampler": "greedy", "samples": 1, "max_new_tokens": most_tokens(questions, sampling)}
    answer = Generator(model, greedy, replicas)

    def continued():
        """Return the continuations of the prompts, and those of the held-out prompts."""
        texts = [question.prompt for question in questions]
        size = min(recipe["batch_size"] // recipe["microbatches"], len(texts)) if texts else 0
        return generate(prompts) if prompts else [], generated(answer, texts, size) if texts else []

    stopwatch.end("start")
    before, answered_before = continued()
    stopwatch.end("before")
    assign(model.trainable_variables, load_arrays(inputs.best), inputs.best)
    after, answered_after = continued()
    stopwatch.end("after")
    rows = [
        {
            "prompt": prompt,
            "before": [found.text for found in old],
            "after": [found.text for found in new],
            "cut": count_cut(old, new),
        }
        for prompt, old, new in zip(prompts, before, after, strict=True)
    ]
    write_json(snakemake.output.generations, {"sampling": sampling, "prompts": rows})
    if inputs.material:
        found = list(zip(questions, answered_before, answered_after, strict=True))
        short = [(q, old.response, new.response) for q, old, new in found if q.is_short]
        scored = [exact_match(items[0].set, *map(list, zip(*short, strict=True)))] if short else []
        write_scored(snakemake.output, recipe, CAUSAL, scored, say)
        rows = [
            {"item": q.item, "prompt": q.prompt, "response": q.response.strip()}
            | {"before": old.response, "after": new.response, "cut": count_cut([old], [new])}
            | ({} if q.is_short else {"long": True})
            for q, old, new in found
        ]
        write_json(snakemake.output.responses, {"rows": rows})
        if not found:
            say(
                f"no document of the test split that has fewer than {recipe['characters']} characters and at most "
                f"{recipe['sequence_length']} tokens ends with a response"
            )
    seconds = stopwatch.seconds
    say(
        f"{len(prompts)} prompts, {sampling['samples']} samples each, and {len(questions)} held-out prompts, before "
        f"and after: {seconds['start']:.1f} s to start, {seconds['before']:.1f} s to compile and generate, "
        f"{seconds['after']:.1f} s to generate again"
    )

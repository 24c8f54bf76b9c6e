"""Generate the responses to held-out prompts with a finetuned model and its base model, and compare them with the text.

input.material    Parquet file of the held-out documents of the finetuning text, see tpulm.evaluation.material
input.base        preset folder; input.best  the tuned variables; input.tokenizer  tokenizer.json
output.scores     JSON: model, kind (causal) and scores, see tpulm.specs.scores: exact match, where there are questions
                  as tpulm.evaluation.exact_match has them
output.by_item    Parquet: score (its name), item, value
output.responses  JSON: for each prompt item, prompt, response, and what was generated before and after finetuning
params.recipe     key and path of the model; responses, how many at most; characters that a document is cut at;
                  sequence_length, batch_size, microbatches, method and keys of LoRA, seed, precision, mesh, layout,
                  cpu_threads, host_device_count
"""

from tpulm.core.arrays import load_arrays
from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.specs.artifacts import TEST
from tpulm.specs.scores import CAUSAL
from tpulm.training.opening import open_causal

recipe, given = snakemake.params.recipe, snakemake.input

with job(snakemake.log[0], f"responses {recipe['path']}") as say:
    model, distribution = open_causal(recipe["key"], recipe, given.base, snakemake.resources)
    from tpulm.evaluation.exact_match import LONGEST, MARKS, exact_match, generated, questions_of
    from tpulm.evaluation.item_means import write_scored
    from tpulm.evaluation.material import read_items
    from tpulm.models.sampling import Generator
    from tpulm.models.variables import assign
    from tpulm.tokenization.tokenizer import TextTokenizer

    tokenizer, back = TextTokenizer.load(*given.tokenizer), model.preprocessor.tokenizer.detokenize
    items = [item for item in read_items(given.material) if item.split == TEST][: recipe["responses"]]
    characters, length = recipe["characters"], recipe["sequence_length"]
    asked = list(questions_of(items, tokenizer, characters, length))
    # As the tokenizer gives a response back, which is how a model's reaches us.
    ids = tokenizer.encode([one.response for one in asked]) if asked else []
    asked = [one._replace(response=str(back(own))) for one, own in zip(asked, ids, strict=True)]
    found, rows = [], []
    if asked:
        prompts = [one.prompt for one in asked]
        longest = max(map(len, tokenizer.encode(prompts))) + LONGEST + MARKS
        sampling = {"sampler": "greedy", "max_length": longest, "samples": 1}
        generate = Generator(model, sampling, distribution.num_model_replicas).responses
        size = min(recipe["batch_size"] // recipe["microbatches"], len(prompts))
        before = generated(generate, prompts, size)
        assign(model.trainable_variables, load_arrays(given.best), given.best)
        after = generated(generate, prompts, size)
        found = [exact_match(items[0].set, asked, before, after)]
        rows = [
            {"item": one.item, "prompt": one.prompt, "response": one.response.strip(), "before": b, "after": a}
            for one, b, a in zip(asked, before, after, strict=True)
        ]
    write_scored(snakemake.output, recipe, CAUSAL, found, say)
    write_json(snakemake.output.responses, {"rows": rows})
    if not found:
        say(
            f"no document of the test split that has fewer than {characters} characters and at most {length} tokens "
            f"ends with a response of at most {LONGEST} tokens"
        )

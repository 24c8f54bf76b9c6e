"""Generate the responses to held-out prompts with a finetuned model and its base model, and compare them with the text.

input.texts       Parquet file of the held-out documents of the finetuning text, see tpulm.evaluation.documents
input.base        preset folder; input.best  the tuned variables
output.scores     JSON: model, kind (causal) and scores, see tpulm.core.scores: exact match, where there are responses
                  of at most tpulm.evaluation.exact_match.LONGEST tokens
output.by_item    Parquet: score (its name), item, value
output.responses  JSON: for each prompt item, prompt, response, and what was generated before and after finetuning
params.recipe     path; responses, how many at most; characters that a document is cut at; batch_size, microbatches,
                  method and keys of LoRA, seed, precision, mesh, layout, cpu_threads, host_device_count
"""

from tpulm.core.arrays import load_arrays
from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.core.scores import CAUSAL, write_scores
from tpulm.specs.artifacts import TEST
from tpulm.specs.training_step import ModelSpec
from tpulm.training import runtime

recipe, given, run = snakemake.params.recipe, snakemake.input, snakemake.wildcards.run

with job(snakemake.log[0], f"responses {recipe['path']}") as say:
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"])
    from tpulm.evaluation.documents import read_sample
    from tpulm.evaluation.exact_match import LONGEST, exact_match, generated, questions_of
    from tpulm.evaluation.text_scores import in_a_line, write_items
    from tpulm.models.building import open_model
    from tpulm.models.causal import assign
    from tpulm.models.sampling import Generator
    from tpulm.models.sharding import on_one_host

    opened = on_one_host(recipe, snakemake.resources) | {"base": {"preset": given.base}}
    model, distribution = open_model(ModelSpec.of("finetune", f"finetune.runs.{run}", opened))
    tokenizer = model.preprocessor.tokenizer

    def tokens(text: str) -> list[int]:
        """Return the ids of a text, without special ones."""
        return list(map(int, tokenizer(text)))

    (texts,) = [one for one in read_sample(given.texts, "finetune-text", recipe["responses"]) if one.split == TEST]
    # As the tokenizer gives a response back, which is how a model's reaches us.
    asked = [
        one._replace(response=str(tokenizer.detokenize(tokens(one.response))).strip())
        for one in questions_of(texts, recipe["characters"])
        if len(tokens(one.response)) <= LONGEST
    ]
    found, rows = [], []
    if asked:
        longest = max(len(tokens(one.prompt)) for one in asked) + LONGEST + 2  # what begins and ends a text
        sampling = {"sampler": "greedy", "max_length": longest, "samples": 1}
        generate = Generator(model, sampling, distribution.num_model_replicas)
        prompts, size = [one.prompt for one in asked], recipe["batch_size"] // recipe["microbatches"]
        before = generated(generate, prompts, size)
        assign(model.trainable_variables, load_arrays(given.best), given.best)
        after = generated(generate, prompts, size)
        found = [exact_match(texts, asked, before, after)]
        rows = [{**one._asdict(), "before": b, "after": a} for one, b, a in zip(asked, before, after, strict=True)]
    write_items(snakemake.output.by_item, found)
    write_scores(snakemake.output.scores, recipe["path"], CAUSAL, [score for score, _ in found])
    write_json(snakemake.output.responses, {"rows": rows})
    nothing = f"no response of the test split has at most {LONGEST} tokens"
    say(in_a_line([score for score, _ in found]) or nothing)

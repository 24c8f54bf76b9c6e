"""Generate the responses to held-out prompts with a finetuned model and its base model, and compare them with the text.

input.material    Parquet file of the held-out documents of the finetuning text, see tpulm.evaluation.material
input.base        preset folder
input.best        tuned variables
input.tokenizer   tokenizer.json
output.scores     JSON: model, kind (causal) and scores, see tpulm.specs.scores: exact match, if the text has questions
                  for tpulm.evaluation.exact_match
output.by_item    Parquet: score (its name), item, value
output.responses  JSON: for each prompt item, prompt, response, and the responses before and after finetuning
params.recipe     key and path of the model; responses (limit of their number); characters (that a document is cut at);
                  sequence_length, batch_size, microbatches, method and keys of LoRA, seed, precision, mesh, layout,
                  cpu_threads, host_device_count
"""

from tpulm.core.arrays import load_arrays
from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.specs.artifacts import TEST
from tpulm.specs.scores import CAUSAL
from tpulm.training.opening import open_causal

recipe, inputs = snakemake.params.recipe, snakemake.input

with job(snakemake.log[0], f"responses {recipe['path']}") as say:
    model, distribution = open_causal(recipe["key"], recipe, inputs.base, snakemake.resources)
    from tpulm.evaluation.exact_match import LONGEST, MARKS, exact_match, generated, questions_of
    from tpulm.evaluation.item_means import write_scored
    from tpulm.evaluation.material import read_items
    from tpulm.models.sampling import Generator
    from tpulm.models.variables import assign
    from tpulm.tokenization.tokenizer import TextTokenizer

    tokenizer, detokenize = TextTokenizer.load(*inputs.tokenizer), model.preprocessor.tokenizer.detokenize
    items = [item for item in read_items(inputs.material) if item.split == TEST][: recipe["responses"]]
    characters, length = recipe["characters"], recipe["sequence_length"]
    questions = list(questions_of(items, tokenizer, characters, length))
    # Generated responses are decoded, so the text's response is encoded and decoded before the comparison.
    ids = tokenizer.encode([question.response for question in questions]) if questions else []
    decoded = map(str, map(detokenize, ids))
    questions = [question._replace(response=text) for question, text in zip(questions, decoded, strict=True)]
    scored, rows = [], []
    if questions:
        prompts = [question.prompt for question in questions]
        longest = max(map(len, tokenizer.encode(prompts))) + LONGEST + MARKS
        sampling = {"sampler": "greedy", "max_length": longest, "samples": 1}
        generate = Generator(model, sampling, distribution.num_model_replicas).responses
        size = min(recipe["batch_size"] // recipe["microbatches"], len(prompts))
        before = generated(generate, prompts, size)
        assign(model.trainable_variables, load_arrays(inputs.best), inputs.best)
        after = generated(generate, prompts, size)
        scored = [exact_match(items[0].set, questions, before, after)]
        rows = [
            {"item": q.item, "prompt": q.prompt, "response": q.response.strip(), "before": b, "after": a}
            for q, b, a in zip(questions, before, after, strict=True)
        ]
    write_scored(snakemake.output, recipe, CAUSAL, scored, say)
    write_json(snakemake.output.responses, {"rows": rows})
    if not scored:
        say(
            f"no document of the test split that has fewer than {characters} characters and at most {length} tokens "
            f"ends with a response of at most {LONGEST} tokens"
        )

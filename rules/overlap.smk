"""Search for evaluation data in the training text of the models."""

# Inputs of the search: texts and pairs, the test examples of tasks, and the items of harness tasks.
SEARCHED = {f"texts/{name}": {"material": EVALUATED.material_of(name)} for name in TEXTS}
SEARCHED |= {f"tasks/{name}": {"test": [f"{task.folder}/test.parquet"]} for name, task in TASKS.items()}
SEARCHED |= {f"harness/{name}": {"questions": [f"<results>/evaluation/harness/{name}/items.json"]} for name in HARNESS}


rule find_overlap:
    """Find the evaluation items that overlap with the training documents of a text."""
    input:
        unpack(lambda w: SEARCHED[w.searched]),
        documents=lambda w: DOCUMENTS_IN_PLACE[w.collection, "train"],
    output:
        overlap("{searched}", "{collection}"),
    params:
        recipe=config["evaluation"]["overlap"],
        code=code_digest("overlap/find_overlap", "data"),
    log:
        "<logs>/evaluation/{searched}-overlap-{collection}.log",
    wildcard_constraints:
        searched=one_of(SEARCHED),
    resources:
        mem_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/overlap/find_overlap.py"

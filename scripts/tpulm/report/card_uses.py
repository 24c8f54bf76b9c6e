"""How to use an artifact, as its card says: a few lines of Python.

`recipe` is what tpulm.config.card_facts.described takes of the config.
"""

from collections.abc import Mapping


def adapter_use(recipe: Mapping) -> str:
    """Return how an adapter is loaded: by Keras, and by PEFT where its base is on the hub."""
    base = recipe["base"]
    folder = recipe["source"].removesuffix("adapter") if recipe["source"].startswith("results/") else ""
    text = code(
        "import json\n\nimport keras_hub\n\n"
        f'model = keras_hub.models.CausalLM.from_preset("{base["preset"]}")\n'
        f'model.backbone.enable_lora(**json.load(open("{folder}adapter.lora.json")))\n'
        f'model.backbone.load_lora_weights("{folder}adapter.lora.h5")'
    )
    peft = f'model = PeftModel.from_pretrained(base, "{recipe["source"]}")'
    if base["transformers"]:
        load = f'base = AutoModelForCausalLM.from_pretrained("{base["transformers"]}")'
        imports = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM"
        return f"{text}\n\nWith PEFT:\n\n" + code(f"{imports}\n\n{load}\n{peft}")
    if not base["hub"]:
        return text
    return f"{text}\n\nWith PEFT, on the same base in transformers (`base`):\n\n" + code(
        f"from peft import PeftModel\n\n{peft}"
    )


def keras_use(recipe: Mapping) -> str:
    """Return how a preset is loaded."""
    return code(
        "import keras_hub\n\n"
        f'model = keras_hub.models.CausalLM.from_preset("{recipe["source"]}")\n'
        'print(model.generate("The beginning of a text", max_length=64))'
    )


def transformers_use(recipe: Mapping) -> str:
    """Return how a causal model is loaded by transformers."""
    return code(
        "from transformers import pipeline\n\n"
        f'generate = pipeline("text-generation", model="{recipe["source"]}")\n'
        'print(generate("The beginning of a text", max_new_tokens=64))'
    )


def code(text: str) -> str:
    """Return a block of Python."""
    return f"```python\n{text}\n```"


# Of causal models by kind: the library that loads them, as the hub calls it, and how it does.
LIBRARIES = {"base": "keras-hub", "adapter": "peft", "model": "keras-hub", "transformers": "transformers"}
USES = {"base": keras_use, "adapter": adapter_use, "model": keras_use, "transformers": transformers_use}

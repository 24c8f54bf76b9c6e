"""Print the names of the causal presets of the installed keras-hub: `make presets` writes schemas/presets.txt."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from keras_hub.models import CausalLM  # noqa: E402

print(*sorted(CausalLM.presets), sep="\n")

"""What a job that trains imports: not what its libraries only take because it is there."""

import json

import pytest
import warm

LISTED = """
import json, sys
print("RESULT" + json.dumps(sorted({name.partition(".")[0] for name, module in sys.modules.items() if module})))
"""


@pytest.mark.parametrize("library", ["jax", "tensorflow"])
def test_what_nothing_here_uses_is_left_out(library):
    imported = set(warm.result(warm.run(library, LISTED)))
    used, other = ("keras_hub", "transformers") if library == "jax" else ("transformers", "jax")
    assert used in imported
    assert not imported & {"kagglehub", "matplotlib", "pandas", "rouge_score", "sklearn", other}


@pytest.mark.parametrize("library", ["jax", "tensorflow"])
def test_what_is_left_out_can_still_be_imported(library):
    program = "from sklearn.metrics import f1_score; import pandas; print('RESULT' + str(f1_score([0, 1], [0, 1])))"
    assert json.loads(warm.run(library, program).stdout.partition("RESULT")[2]) == 1.0

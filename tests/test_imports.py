"""What a job that trains imports: not what its libraries only take because it is there."""

import gc

import pytest
import warm
from tpulm.core.imports import without

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
    assert library == "jax" or "scipy" not in imported  # which JAX needs


@pytest.mark.parametrize("library", ["jax", "tensorflow"])
def test_what_is_left_out_can_still_be_imported(library):
    program = "import kagglehub, pandas; from sklearn.metrics import f1_score; print('RESULT', f1_score([1], [1]))"
    assert warm.result(warm.run(library, program)) == 1.0


def test_cycles_are_collected_again_after_an_import():
    assert gc.isenabled()
    before = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), without("json.tool"):
            assert not gc.isenabled()
            import json.tool  # noqa: F401
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()

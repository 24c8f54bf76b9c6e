"""Which jobs are kept though their code has changed: those that differ by nothing else."""

from types import SimpleNamespace

import pytest
from snakemake.persistence import ParamsChange
from tpulm.core.code_digest import ROOT
from tpulm.workflow import keeping

pytestmark = pytest.mark.unit
OLD, NEW = (f"'scripts/mlm/train.py jax 0123456789abcde{digit}'" for digit in "01")


def differs_by_code(old=(OLD,), new=(NEW,), before=("a.txt",), now=("a.txt",), reasons=(), outputs=2) -> bool:
    """Return what `Keeper` says of a job with these params and inputs, in the metadata of its outputs and now."""
    job = SimpleNamespace(output=[f"out-{number}" for number in range(outputs)])
    persistence = SimpleNamespace(
        params_changed=lambda job: ParamsChange({*old}, {*new}, {*job.output}),
        input=lambda file: list(before),
        _input=lambda job: list(now),
    )
    reason = SimpleNamespace(get_names=lambda: iter(reasons or ["params have changed since last execution"]))
    workflow = SimpleNamespace(persistence=persistence, dag=SimpleNamespace(reason=lambda job: reason))
    return keeping.Keeper.differs_by_code(SimpleNamespace(workflow=workflow), job)


@pytest.mark.parametrize("outputs", [1, 2, 3, 4])
def test_a_job_is_kept_if_only_its_code_has_changed(outputs):
    assert differs_by_code(outputs=outputs)
    assert not differs_by_code(now=("a.txt", "b.txt"), outputs=outputs)
    assert not differs_by_code(old=(OLD, "{'steps': 1}"), new=(NEW, "{'steps': 2}"), outputs=outputs)
    assert not differs_by_code(reasons=["output files have to be generated"], outputs=outputs)
    assert not differs_by_code(new=(NEW.replace("jax", "tensorflow"),), outputs=outputs)
    assert not differs_by_code(old=(), new=(), outputs=outputs)


def test_code_that_was_an_input_before_is_that_of_this_folder(monkeypatch):
    monkeypatch.chdir(ROOT)
    code = ("scripts/mlm/train.py", "envs/jax.txt", "a.txt")
    assert differs_by_code(old=(), before=code)
    assert not differs_by_code(before=code)  # where code was no input any more
    assert not differs_by_code(old=(), before=("/data/scripts/old.py", "a.txt"), now=("/data/scripts/new.py", "a.txt"))

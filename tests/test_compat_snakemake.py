"""What tpulm.compat uses of Snakemake's insides is there; each test names what has moved where it is not."""

import inspect
import logging
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import snakemake
from conftest import ROOT
from snakemake.api import SnakemakeApi, WorkflowApi
from snakemake.dag import DAG
from snakemake.exceptions import MissingRuleException, ProtectedOutputException
from snakemake.jobs import Job, Reason
from snakemake.logging import ColorizingTextHandler, DefaultFormatter, LoggerManager
from snakemake.modules import WorkflowModifier
from snakemake.path_modifier import PathModifier
from snakemake.persistence import MetadataRecord, ParamsChange, PersistenceBase
from snakemake.rules import Rule
from snakemake.settings import types as settings
from snakemake.workflow import Workflow
from tpulm.compat import snakemake as inside

pytestmark = pytest.mark.unit


def has(owner: type, *names: str) -> None:
    """Fail by the first name that a class, and what it sets when it is made, has no more."""
    source = "".join(inspect.getsource(one) for one in owner.__mro__ if one.__module__.startswith("snakemake"))
    for name in names:
        there = hasattr(owner, name) or re.search(rf"\bself\.{name}(: .*)? = |^    {name}:", source, re.M)
        assert there, f"{owner.__module__}.{owner.__name__} has no {name}"


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (
            Workflow,
            "modifier config_settings storage_settings deployment_settings executor_settings dag rules logger_manager "
            "is_main_process pathvars local_exec resource_settings output_settings touch cores current_basedir "
            "main_snakefile overwrite_workdir dag_settings persistence async_run include config",
        ),
        (WorkflowModifier, "is_main_snakefile modify_rulename path_modifier"),
        (PathModifier, "replace_prefix"),
        (settings.ConfigSettings, "configfiles config"),
        (settings.ResourceSettings, "nodes"),
        (settings.StorageSettings, "default_storage_provider default_storage_prefix shared_fs_usage"),
        (settings.DeploymentSettings, "deployment_method"),
        (settings.DAGSettings, "forceall forcetargets forcerun"),
        (DAG, "needrun_jobs job_dependencies jobid untilrules jobs reason update_needrun"),
        (Reason, "get_names clear"),
        (PersistenceBase, "params_changed input metadata _input _params _get_key _write_record"),
        (ParamsChange, "only_old only_new"),
        (MetadataRecord, "params input"),
        (Rule, "name snakefile has_wildcards products input output script docstring lineno is_producer get_wildcards"),
        (Rule, "workflow"),
        (Job, "input output params wildcards threads resources log rule is_local"),
        (LoggerManager, "logger settings"),
        (settings.OutputSettings, "verbose debug_dag dryrun quiet"),
        (ColorizingTextHandler, "stream can_color_tty decorate format"),
        (SnakemakeApi, "workflow"),
        (WorkflowApi, "_get_workflow"),
    ],
)
def test_snakemake_has_what_is_used_of_it(owner, names):
    has(owner, *names.split())


def test_architecture_lists_what_is_used_of_the_workflow_and_its_graph():
    folders = [ROOT / "rules", ROOT / "scripts/tpulm/compat", ROOT / "scripts/tpulm/workflow"]
    text = "".join(path.read_text() for folder in folders for path in folder.iterdir() if path.is_file())
    used = set(re.findall(r"(?<![./\w])(?:self\.)?(?:workflow\.)?(?:workflow|dag)\.([a-z_]+)", text))
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("| in | uses | because |")[2]
    assert not used - set(re.findall(r"`\w*\.([a-z_]+)`", table))


def test_the_handler_that_is_replaced_has_its_name():
    logger = logging.Logger("of this test")
    LoggerManager(logger, settings.OutputSettings())
    (handler,) = logger.handlers
    assert handler.name == inside.DEFAULT_HANDLER and isinstance(handler, ColorizingTextHandler)
    assert isinstance(handler.formatter, DefaultFormatter)
    made = logging.NullHandler()
    manager = SimpleNamespace(logger=logger, settings=settings.OutputSettings())
    inside.replace_handler(SimpleNamespace(logger_manager=manager), lambda *_: made)
    assert logger.handlers == [made]


@cache
def source() -> str:
    """Return the text of Snakemake's modules."""
    return "".join(path.read_text() for path in Path(snakemake.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(
    "words",
    [*inside.CHATTER, *inside.ROUTINE, inside.FORCED, "Params have changed since last execution: "],
    ids=str.strip,
)
def test_snakemake_says_it_in_these_words(words):
    assert f'"{words}' in source()  # as a message begins with them


def test_what_snakemake_says_is_understood():
    said = str(MissingRuleException("results/x.json"))
    assert inside.missing_target(f"MissingRuleException:\n{said}") == "results/x.json"
    assert inside.missing_target("MissingInputException") is None
    rule = SimpleNamespace(name="a", lineno=1, snakefile="Snakefile", __str__=lambda self: "a")
    job = SimpleNamespace(rule=rule, output=["results/a.json", "results/b.json"], wildcards={})
    said = str(ProtectedOutputException(job, ["results/b.json", "results/a.json"]))
    assert inside.read_only(f"ProtectedOutputException in rule a:\n{said}") == "results/b.json"
    assert inside.read_only("MissingInputException") is None
    reason = Reason()
    reason.missing_output.update(["a"])
    reason.params_changed = "before: {x: 1; y: 2}"
    assert inside.reasons(str(reason)) == ["Missing output files: a", "Params have changed since last execution"]
    assert inside.stale(inside.reasons(str(reason))) == "Params have changed since last execution"


def test_the_storage_plugin_lists_by_inventory():
    plugin = pytest.importorskip("snakemake_storage_plugin_gcs")
    has(plugin.StorageObject, "inventory", "get_inventory_parent", "_local_suffix_from_key", "cache_key", "client")
    has(plugin.StorageObject, "bucket_name", "query")
    from snakemake.io import ExistsDict, IOCache

    has(IOCache, "exists_in_storage", "mtime", "size")
    has(ExistsDict, "has_inventory")

"""What tpulm.compat uses of Snakemake's insides is there; each test names what has moved where it is not."""

import inspect
import logging
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import snakemake
from snakemake.api import SnakemakeApi, WorkflowApi
from snakemake.dag import DAG
from snakemake.exceptions import MissingRuleException, ProtectedOutputException
from snakemake.jobs import Job, Reason
from snakemake.logging import ColorizingTextHandler, DefaultFormatter, LoggerManager
from snakemake.modules import WorkflowModifier
from snakemake.path_modifier import PathModifier
from snakemake.rules import Rule
from snakemake.settings.types import ConfigSettings, OutputSettings, ResourceSettings, StorageSettings
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
            "main_snakefile include",
        ),
        (WorkflowModifier, "is_main_snakefile modify_rulename path_modifier"),
        (PathModifier, "replace_prefix"),
        (ConfigSettings, "configfiles config"),
        (ResourceSettings, "nodes"),
        (StorageSettings, "default_storage_provider default_storage_prefix"),
        (DAG, "needrun_jobs job_dependencies untilrules"),
        (Rule, "name snakefile has_wildcards products input is_producer get_wildcards workflow"),
        (Job, "input output params wildcards threads resources log rule is_local"),
        (LoggerManager, "logger settings"),
        (OutputSettings, "verbose debug_dag dryrun quiet"),
        (ColorizingTextHandler, "stream can_color_tty decorate format"),
        (SnakemakeApi, "workflow"),
        (WorkflowApi, "_get_workflow"),
    ],
)
def test_snakemake_has_what_is_used_of_it(owner, names):
    has(owner, *names.split())


def test_the_handler_that_is_replaced_has_its_name():
    logger = logging.Logger("of this test")
    LoggerManager(logger, OutputSettings())
    (handler,) = logger.handlers
    assert handler.name == inside.DEFAULT_HANDLER and isinstance(handler, ColorizingTextHandler)
    assert isinstance(handler.formatter, DefaultFormatter)
    made = logging.NullHandler()
    manager = SimpleNamespace(logger=logger, settings=OutputSettings())
    inside.replace_handler(SimpleNamespace(logger_manager=manager), lambda *_: made)
    assert logger.handlers == [made]


@cache
def source() -> str:
    """Return the text of Snakemake's modules."""
    return "".join(path.read_text() for path in Path(snakemake.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(
    "words", [*inside.CHATTER, *inside.ROUTINE, "Params have changed since last execution: "], ids=str.strip
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

"""Snakemake: what is used of it beyond its documented interface.

What  parts of `workflow`, the object that a Snakefile has under this name; of its graph, its rules and its jobs; the
      handler of its logger; what its messages say. Nothing of Snakemake is replaced but that handler.
Why   Snakemake has no other way to ask what each function here says. It changes what is right, not how fast it is.
Until function by function, when a Snakefile can ask Snakemake for the same.

Attributes of `workflow` and of jobs that are plain words, such as `workflow.cores` and `job.output`, stay where they
are used; ARCHITECTURE.md lists them. tests/test_compat_snakemake.py names what has moved.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from snakemake.io import AnnotatedString, sourcecache_entry
from snakemake.settings.types import (
    ConfigSettings,
    DAGSettings,
    DeploymentMethod,
    ResourceSettings,
    SharedFSUsage,
    StorageSettings,
    WorkflowSettings,
)
from snakemake_interface_logger_plugins.common import LogEvent

from tpulm.core.ledger import name_here

DEFAULT_HANDLER = "DefaultStreamHandler"  # how Snakemake names the handler that writes to the terminal
# What Snakemake says of itself, whatever there is to do.
CHATTER = (
    "Building DAG", "Select jobs", "Execute ", "Using shell", "Conda environments: ignored", "Singularity containers",
    "Group jobs: inactive", "Assuming unrestricted", "Shutting down", "Some jobs were triggered by provenance",
    "Rules with provenance", "Storing output", "Reasons:", "Exiting because a job execution failed",
)  # fmt: skip
SILENT = (LogEvent.WORKFLOW_STARTED, LogEvent.RESOURCES_INFO, LogEvent.GROUP_INFO, LogEvent.RULEGRAPH,
          LogEvent.PROGRESS)  # fmt: skip
# In the RuleException about a script that has ended by itself; Snakemake tells of the job, too.
ENDED = "returned non-zero exit status 1."
ROUTINE = ("Missing output files", "Input files updated by another job", "Rules with")  # reasons of jobs not stale
MISSING = re.compile(r"No rule to produce (.+?) \(if you use input functions")  # in a MissingRuleException
PROTECTED = re.compile(r"^Write-protected output files.*?affected files:\s+(\S+)", re.MULTILINE | re.DOTALL)
PARAMS = re.compile(r"(Params have changed since last execution): .*?(?=; Software environment|\Z)", re.DOTALL)


# While a Snakefile is parsed.


def is_main(workflow: Any) -> bool:
    """Return whether the Snakefile is the command's own one, and not of a module in another workflow.

    A module has its config from the outer workflow, and shows nothing by itself.
    """
    return workflow.modifier.is_main_snakefile()


def rule_name(workflow: Any, name: str) -> str:
    """Return the name of a rule on the command line: in a module, with the module's prefix."""
    return workflow.modifier.modify_rulename(name)


def prefixing(workflow: Any) -> Callable[[str], str]:
    """Return a function that puts the prefix of a module before a path, as Snakemake does with the paths of rules.

    Snakemake has the modifiers of the file that it parses; the function keeps those of now.
    """
    modifier = workflow.modifier.path_modifier
    return lambda path: str(modifier.replace_prefix(path))


def config_given(workflow: Any) -> tuple[list[Path], Mapping]:
    """Return the files of --configfile and the keys of --config.

    Snakemake's `configfile:` would merge the files into config.yaml instead of taking its place.
    """
    return list(workflow.config_settings.configfiles or []), workflow.config_settings.config


def default_storage(workflow: Any) -> tuple[str | None, str]:
    """Return the storage provider for results and its prefix; None for this machine's disk."""
    settings = workflow.storage_settings
    return settings.default_storage_provider, settings.default_storage_prefix


def source_input(path: str) -> AnnotatedString:
    """Return a file of the workflow's source as an input that no storage provider takes into its bucket.

    What is `local` would keep its job on this machine; what is in Snakemake's cache of sources does not.
    """
    return sourcecache_entry(path, path)


def jobs_here(workflow: Any) -> bool:
    """Return whether jobs are going to run on this machine, by --jobs, which all profiles for other places set.

    The executor is not known yet, and in a dry run it is another one.
    """
    return workflow.resource_settings.nodes is None


def uses_conda(workflow: Any) -> bool:
    """Return whether jobs run in conda environments, and may have what is not installed here."""
    return DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method


# When all rules are known.


def snakefiles(workflow: Any) -> dict[str, Path]:
    """Return the file that each rule is in, by the rule's name."""
    return {rule.name: Path(str(rule.snakefile)) for rule in workflow.rules}


def targets(workflow: Any) -> list[str]:
    """Return the possible targets: names of rules, and files without wildcards."""
    found: dict[str, None] = {}
    for rule in workflow.rules:
        if not rule.has_wildcards():
            found[rule.name] = None
        files = (file for file in [*rule.products(), *rule.input] if isinstance(file, str))
        found |= dict.fromkeys(name_here(str(file)) for file in files if str(file) and "{" not in file)
    return list(found)


# Before the first job.


def pending_jobs(workflow: Any) -> list:
    """Return the jobs that are going to run."""
    return list(workflow.dag.needrun_jobs())


def ordered_jobs(workflow: Any) -> Iterator[tuple[int, Any, list[int]]]:
    """Yield the jobs that are going to run, each behind those before it: id, job, and the ids of those before it."""
    dag = workflow.dag
    pending = set(dag.needrun_jobs())
    before = {job: [other for other in dag.job_dependencies(job) if other in pending] for job in pending}
    for job in TopologicalSorter(before).static_order():
        yield dag.jobid(job), job, [dag.jobid(other) for other in before[job]]


def until(workflow: Any) -> set[str]:
    """Return the rules that --until names."""
    return set(workflow.dag.untilrules)


def jobs_before(workflow: Any, job: Any) -> list:
    """Return the jobs that make the inputs of a job."""
    return list(workflow.dag.job_dependencies(job))


def carries_sources(workflow: Any) -> bool:
    """Return whether jobs run without the workflow's files, so that Snakemake sends those of the working folder."""
    shared = workflow.storage_settings.shared_fs_usage
    return not workflow.local_exec and SharedFSUsage.SOURCES not in shared


def executor_settings(workflow: Any) -> Any:
    """Return the settings of the executor plugin, a dataclass; None of one that has none."""
    return workflow.executor_settings


# The display.


def replace_handler(workflow: Any, make: Callable[[Any, logging.Handler, Any], logging.Handler]) -> None:
    """Put another handler in the place of the one that writes to the terminal.

    Not with --verbose, --debug-dag or a logger plugin, by which users ask for Snakemake's own words or for others. A
    logger plugin would have to be installed and named in every profile.

    make  returns the handler, given the workflow, Snakemake's own handler and the settings of its output
    """
    manager = workflow.logger_manager
    asked = manager.settings.verbose or manager.settings.debug_dag
    for handler in list(manager.logger.handlers):
        if handler.name == DEFAULT_HANDLER and not asked:
            manager.logger.removeHandler(handler)
            manager.logger.addHandler(make(workflow, handler, manager.settings))


def reasons(reason: str) -> list[str]:
    """Return the parts of the reason of a job: no params, which are long, and the first file of each list.

    That jobs before it run, too, is said where it is the only reason. Input files that such a job updates, and that
    are also newer, leave a list without a file.
    """
    parts = [re.sub(", .*", ", ...", part) for part in PARAMS.sub(r"\1", reason).split("; ")]
    parts = [part for part in parts if not part.endswith(": ")]
    return [part for part in parts if not part.startswith(ROUTINE[1])] or parts


# Metadata, for tools/keep_results.py.


def differences_of_metadata(workflow: Any, job: Any) -> tuple[set[str], set[str]] | None:
    """Return the params and the inputs of a job that are only in its metadata, or only in the workflow, each as text.

    None where the job is going to run for any other reason.
    """
    reason, persistence = workflow.dag.reason(job), workflow.persistence
    if {*reason.get_names()} - {"params have changed since last execution",
                                "set of input files has changed since last execution"}:  # fmt: skip
        return None
    inputs: set[str] = set()
    for file in job.output:
        inputs ^= {*persistence.input(file)} ^ {*map(str, persistence._input(job))}
    change = reason.params_changed
    return ({*change.only_old, *change.only_new} if change else set()), inputs


def renew_metadata(workflow: Any, jobs: Iterable) -> None:
    """Write params and inputs of jobs into the metadata of their outputs, and find out again what is going to run."""
    persistence, dag = workflow.persistence, workflow.dag
    for job in jobs:
        for file in job.output:
            record = persistence.metadata(file)
            record.params, record.input = persistence._params(job), persistence._input(job)
            persistence._write_record(persistence._get_key(file), record)
    for job in dag.jobs:
        dag.reason(job).clear()
    workflow.async_run(dag.update_needrun())


def stale(parts: Iterable[str]) -> str:
    """Return what of `reasons` says that a job is stale; nothing of one whose outputs are not there yet."""
    return "; ".join(part for part in parts if not part.startswith(ROUTINE))


def jobs_by_id(workflow: Any) -> dict[int, Any]:
    """Return the jobs that are going to run by the ids that messages name."""
    return {workflow.dag.jobid(job): job for job in workflow.dag.needrun_jobs()}


def only_for_the_log(record: logging.LogRecord) -> bool:
    """Return whether a record tells a user nothing."""
    said = record.getMessage()
    if getattr(record, "exception", None) == "RuleException":
        return ENDED in said
    return getattr(record, "event", None) in SILENT or said.startswith(CHATTER)


def ended_with_failures(message: str) -> bool:
    """Return whether a message of Snakemake says, as its last one, that jobs have failed."""
    return "At least one job did not complete successfully" in message


def missing_target(message: str) -> str | None:
    """Return the target of which a message of Snakemake says that no rule makes it; None for another message."""
    missing = MISSING.search(message)
    return missing[1] if missing else None


def read_only(message: str) -> str | None:
    """Return the first output of which a message of Snakemake says that it is read-only; None for another message."""
    found = PROTECTED.search(message)
    return found[1] if found else None


# Rules and single jobs, for tools/.


def workflow_of(api: Any, snakefile: Path, configfiles: Sequence[Path], cores: int) -> Any:
    """Return Snakemake's workflow of a Snakefile, with its rules and without a graph of jobs.

    api  Snakemake's SnakemakeApi, whose workflow is private: it can run one or list its files, not return its rules
    """
    described = api.workflow(
        resource_settings=ResourceSettings(cores=cores),
        config_settings=ConfigSettings(configfiles=configfiles),
        workflow_settings=WorkflowSettings(),
        storage_settings=StorageSettings(),
        snakefile=snakefile,
    )
    workflow = described._get_workflow(dag_settings=DAGSettings())
    workflow.include(snakefile, overwrite_default_target=True)
    return workflow


def job_of(workflow: Any, file: str) -> Any:
    """Return the job of a workflow that makes a file; None where no rule makes it."""
    from snakemake.dag import DAG
    from snakemake.jobs import Job

    rule = next((rule for rule in workflow.rules if rule.is_producer(file)), None)
    return rule and Job(rule, DAG(workflow, rules=[rule]), rule.get_wildcards(file))


def script_object(job: Any, place: Callable[[str], str]) -> Any:
    """Return what a script of a job has as `snakemake`, with outputs and log elsewhere.

    place  returns where an output or log goes, given its path
    """
    from snakemake.iocontainers import InputFiles, Log, OutputFiles
    from snakemake.script import Snakemake

    return Snakemake(
        input_=InputFiles(toclone=job.input, plainstr=True),
        output=OutputFiles(toclone=job.output, custom_map=place),
        params=job.params,
        wildcards=job.wildcards,
        threads=job.threads,
        resources=job.resources,
        log=Log(toclone=job.log, custom_map=place),
        config=job.rule.workflow.config,
        rulename=job.rule.name,
        bench_iteration=None,
    )

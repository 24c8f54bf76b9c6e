"""Private names of Snakemake.

What  attributes of `workflow`, the object of this name in a Snakefile, and of its graph, rules and jobs; the handler of
      its logger, which alone is replaced; the texts of its messages.
Why   Snakemake has no documented way to get what each function returns.
Until a Snakefile can get the same from Snakemake.

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
# Beginnings of messages that do not help users.
CHATTER = (
    "Building DAG", "Select jobs", "Execute ", "Using shell", "Conda environments: ignored", "Singularity containers",
    "Group jobs: inactive", "Assuming unrestricted", "Shutting down", "Some jobs were triggered by provenance",
    "Rules with provenance", "Storing output", "Reasons:", "Exiting because a job execution failed",
)  # fmt: skip
SILENT = (LogEvent.WORKFLOW_STARTED, LogEvent.RESOURCES_INFO, LogEvent.GROUP_INFO, LogEvent.RULEGRAPH,
          LogEvent.PROGRESS)  # fmt: skip
# In the RuleException for a script that has ended by itself, whose job Snakemake also reports.
ENDED = "returned non-zero exit status 1."
# Reasons of jobs that are not stale.
ROUTINE = ("Missing output files", "Input files updated by another job", "Rules with")
FORCED = "Forced execution"
MISSING = re.compile(r"No rule to produce (.+?) \(if you use input functions")  # in a MissingRuleException
PROTECTED = re.compile(r"^Write-protected output files.*?affected files:\s+(\S+)", re.MULTILINE | re.DOTALL)
PARAMS = re.compile(r"(Params have changed since last execution): .*?(?=; Software environment|\Z)", re.DOTALL)


# While a Snakefile is parsed.


def is_main(workflow: Any) -> bool:
    """Return whether the Snakefile is that of the command, and not a module of another workflow."""
    return workflow.modifier.is_main_snakefile()


def rule_name(workflow: Any, name: str) -> str:
    """Return the name of a rule on the command line, with the prefix of a module."""
    return workflow.modifier.modify_rulename(name)


def prefixing(workflow: Any) -> Callable[[str], str]:
    """Return a function that adds the prefix of the current module to a path, as Snakemake does with paths of rules."""
    modifier = workflow.modifier.path_modifier
    return lambda path: str(modifier.replace_prefix(path))


def config_given(workflow: Any) -> tuple[list[Path], Mapping]:
    """Return the files of --configfile and the keys of --config.

    Snakemake's `configfile:` would merge the files into config.yaml instead of replacing it.
    """
    return list(workflow.config_settings.configfiles or []), workflow.config_settings.config


def default_storage(workflow: Any) -> tuple[str | None, str]:
    """Return the storage provider for results, None for this machine's disk, and its prefix."""
    settings = workflow.storage_settings
    return settings.default_storage_provider, settings.default_storage_prefix


def source_input(path: str) -> AnnotatedString:
    """Return a file of the workflow's source as an input that no storage provider stores in its bucket.

    An input that is `local` would keep its job on this machine; a file in Snakemake's cache of sources does not.
    """
    return sourcecache_entry(path, path)


def jobs_here(workflow: Any) -> bool:
    """Return whether jobs will run on this machine: without --jobs, which all profiles for other machines set.

    The executor is not known yet, and differs in a dry run.
    """
    return workflow.resource_settings.nodes is None


def uses_conda(workflow: Any) -> bool:
    """Return whether jobs run in conda environments, which may have packages that are not installed here."""
    return DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method


# When all rules are known.


def snakefiles(workflow: Any) -> dict[str, Path]:
    """Return the file of each rule by the rule's name."""
    return {rule.name: Path(str(rule.snakefile)) for rule in workflow.rules}


def targets(workflow: Any) -> list[str]:
    """Return the possible targets: names of rules, and files without wildcards."""
    names: dict[str, None] = {}
    for rule in workflow.rules:
        if not rule.has_wildcards():
            names[rule.name] = None
        files = (file for file in [*rule.products(), *rule.input] if isinstance(file, str))
        names |= dict.fromkeys(name_here(str(file)) for file in files if str(file) and "{" not in file)
    return list(names)


# Before the first job.


def pending_jobs(workflow: Any) -> list:
    """Return the jobs that will run."""
    return list(workflow.dag.needrun_jobs())


def ordered_jobs(workflow: Any) -> Iterator[tuple[int, Any, list[int]]]:
    """Yield the jobs that will run, each after its dependencies: id, job, and the ids of its dependencies."""
    dag = workflow.dag
    pending = set(dag.needrun_jobs())
    before = {job: [dependency for dependency in dag.job_dependencies(job) if dependency in pending] for job in pending}
    for job in TopologicalSorter(before).static_order():
        yield dag.jobid(job), job, [dag.jobid(dependency) for dependency in before[job]]


def until(workflow: Any) -> set[str]:
    """Return the rules that --until names."""
    return set(workflow.dag.untilrules)


def jobs_before(workflow: Any, job: Any) -> list:
    """Return the jobs that write the inputs of a job."""
    return list(workflow.dag.job_dependencies(job))


def carries_sources(workflow: Any) -> bool:
    """Return whether Snakemake sends the sources of the workflow to jobs, because these do not share its files."""
    shared = workflow.storage_settings.shared_fs_usage
    return not workflow.local_exec and SharedFSUsage.SOURCES not in shared


def executor_settings(workflow: Any) -> Any:
    """Return the settings of the executor plugin, a dataclass; None if it has none."""
    return workflow.executor_settings


# The display.


def replace_handler(
    workflow: Any, make: Callable[[Any, logging.Handler, Any], logging.Handler], always: bool = False
) -> None:
    """Replace the handler that writes to the terminal, except with --verbose, --debug-dag or a logger plugin.

    A logger plugin would have to be installed and named in every profile.

    make    returns the handler, given the workflow, Snakemake's own handler and the settings of its output
    always  whether to replace it with these options, too
    """
    manager = workflow.logger_manager
    own_output = not always and (manager.settings.verbose or manager.settings.debug_dag)
    for handler in list(manager.logger.handlers):
        if handler.name == DEFAULT_HANDLER and not own_output:
            manager.logger.removeHandler(handler)
            manager.logger.addHandler(make(workflow, handler, manager.settings))


def reasons(reason: str) -> list[str]:
    """Return the parts of the reason of a job, without params, which are long, and with the first file of each list.

    Updates by another job are left out if there is another reason, and so are lists without a file.
    """
    parts = [re.sub(", .*", ", ...", part) for part in PARAMS.sub(r"\1", reason).split("; ")]
    parts = [part for part in parts if not part.endswith(": ")]
    return [part for part in parts if not part.startswith(ROUTINE[1])] or parts


# Metadata.


def changed_params(workflow: Any, job: Any) -> tuple[set[str], set[str]]:
    """Return the params of a job that only its metadata has, and those that only the workflow has, as text."""
    change = workflow.persistence.params_changed(job)
    return ({*change.only_old}, {*change.only_new}) if change else (set(), set())


def changed_inputs(workflow: Any, job: Any) -> set[str]:
    """Return the inputs of a job that only the metadata of an output has, or only the workflow."""
    now = {*map(str, workflow.persistence._input(job))}
    return {path for file in job.output for path in {*(workflow.persistence.input(file) or ())} ^ now}


def may_be_up_to_date(workflow: Any, job: Any) -> bool:
    """Return whether a job is going to run only for its params, its set of inputs, or the jobs before it."""
    reasons = ("params have changed", "set of input files has changed", "input files updated by another job")
    return all(name.startswith(reasons) for name in workflow.dag.reason(job).get_names())


def renew_metadata(workflow: Any, jobs: Iterable) -> list:
    """Write params and inputs of jobs into the metadata of their outputs, where nothing else makes them stale.

    Returns these jobs. The metadata of the others stays as it was.
    """
    persistence, dag = workflow.persistence, workflow.dag
    before = {}
    for job in jobs:
        records = [(persistence._get_key(file), persistence.metadata(file)) for file in job.output]
        before[job] = [(key, record.model_copy()) for key, record in records]
        for key, record in records:
            record.params, record.input = persistence._params(job), persistence._input(job)
            persistence._write_record(key, record)
    for job in dag.jobs:
        dag.reason(job).clear()
    workflow.async_run(dag.update_needrun())
    for job in dag.needrun_jobs():
        for key, record in before.pop(job, ()):
            persistence._write_record(key, record)
    return list(before)


def interrupted(workflow: Any, parts: Iterable[str]) -> bool:
    """Return whether a job runs because its output is incomplete: Snakemake forces it, and the command forces none."""
    if [*parts] != [FORCED]:
        return False
    settings = workflow.dag_settings
    return not (settings.forceall or settings.forcetargets or settings.forcerun)


def stale(parts: Iterable[str]) -> str:
    """Return the parts of `reasons` that make a job stale; "" for a job without outputs so far."""
    return "; ".join(part for part in parts if not part.startswith(ROUTINE))


def jobs_by_id(workflow: Any) -> dict[int, Any]:
    """Return the jobs that will run by the ids of messages."""
    return {workflow.dag.jobid(job): job for job in workflow.dag.needrun_jobs()}


def only_for_the_log(record: logging.LogRecord) -> bool:
    """Return whether a record of the logger does not help users."""
    message = record.getMessage()
    if getattr(record, "exception", None) == "RuleException":
        return ENDED in message
    return getattr(record, "event", None) in SILENT or message.startswith(CHATTER)


def ended_with_failures(message: str) -> bool:
    """Return whether a message of Snakemake is its last one after jobs have failed."""
    return "At least one job did not complete successfully" in message


def missing_target(message: str) -> str | None:
    """Return the target that no rule makes according to a message of Snakemake; None for another message."""
    match = MISSING.search(message)
    return match[1] if match else None


def read_only(message: str) -> str | None:
    """Return the first read-only output in a message of Snakemake; None for another message."""
    match = PROTECTED.search(message)
    return match[1] if match else None


# Rules and single jobs, for tools/.


def workflow_of(api: Any, snakefile: Path, configfiles: Sequence[Path], cores: int) -> Any:
    """Return Snakemake's workflow of a Snakefile, with its rules and without a graph of jobs.

    api  Snakemake's SnakemakeApi, which runs a workflow or lists its files, but does not return its rules
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
    """Return the job of a workflow that writes a file; None without a rule for it."""
    from snakemake.dag import DAG
    from snakemake.jobs import Job

    rule = next((rule for rule in workflow.rules if rule.is_producer(file)), None)
    return rule and Job(rule, DAG(workflow, rules=[rule]), rule.get_wildcards(file))


def script_object(job: Any, place: Callable[[str], str]) -> Any:
    """Return the object `snakemake` of a job's script, with other paths of outputs and log.

    place  returns the path of an output or log, given that of the job
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

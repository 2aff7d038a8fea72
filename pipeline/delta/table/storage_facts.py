"""How the storage of a table is reached: its address, the kind of its account, and its log store.

Here belongs what may be shown and recorded of it, which is never a secret. `storage_check` finds out whether it works.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipeline.delta.spark.confs import CONDITIONAL_LOG_STORES, log_store_conf
from pipeline.delta.spark.failures import LOST_OR_REFUSED
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.storage.options import account_kind, endpoint_of, log_requests, region_of
from pipeline.settings import SCHEMES

HIDDEN = "***"
# An address without a user; its path is not shown. A region; the name of a class.
_ADDRESS = re.compile(r"((?:https?://)?(?:[\w.-]+|\[[0-9a-fA-F:]+\])(?::\d+)?)(?:/[^@?#]*)?")
_REGION = re.compile(r"[\w-]{1,40}")
_CLASS = re.compile(r"[\w.$]{1,200}")


@dataclass(frozen=True, kw_only=True)
class StorageFacts:
    """How a bucket is reached. Of a folder on this machine only the scheme `file` is given.

    `endpoint` is that of Spark, and `log_endpoint` that of this process; None is the provider's own. `account` is the
    kind of the account. `log_store` is the class with which Delta commits; if it is not known, None.
    `creates_checked`: before the first write of a session it is checked that the store creates a file only if there is
    none; if `log_store` is not known, None.
    """

    uri: str
    scheme: str
    endpoint: str | None = None
    log_endpoint: str | None = None
    region: str | None = None
    account: str | None = None
    log_store: str | None = None
    creates_checked: bool | None = None


def storage_facts(location: str, log_store: str | None) -> StorageFacts:
    """The facts of the bucket of a location, with the account that this process uses. No request.

    Args:
        log_store: the class of the log store for its scheme. If it is not known, None.
    """
    if local_folder(location) is not None:
        return StorageFacts(uri="file:", scheme="file")
    scheme, _, rest = location.partition("://")
    authority = rest.partition("/")[0]
    if scheme not in SCHEMES:
        return StorageFacts(uri=f"{scheme}://", scheme=scheme)
    endpoint = endpoint_of(scheme, authority)
    return StorageFacts(
        uri=f"{scheme}://{authority}",
        scheme=scheme,
        endpoint=_shown(endpoint, _ADDRESS),
        log_endpoint=_shown(log_requests(scheme, authority).endpoint or endpoint, _ADDRESS),
        region=_shown(region_of(scheme, authority), _REGION),
        account=account_kind(scheme, authority).value,
        log_store=_shown(log_store, _CLASS),
        creates_checked=None if log_store is None else log_store in CONDITIONAL_LOG_STORES,
    )


def storage_facts_in(session: SparkSession, location: str) -> StorageFacts:
    """As `storage_facts`, with the log store of a session. No Spark job."""
    log_store = None
    if local_folder(location) is None:
        try:
            log_store = session.conf.get(log_store_conf(location), None)
        except LOST_OR_REFUSED:  # the rows are committed; the session may be gone since
            log_store = None
    return storage_facts(location, log_store)


def _shown(text: str | None, form: re.Pattern[str]) -> str | None:
    """The part of a text that is in its first group, or all of it. A text of another form may hold a secret."""
    if text is None:
        return None
    match = form.fullmatch(text)
    return HIDDEN if match is None else match[1] if form.groups else text

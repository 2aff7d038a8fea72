"""Why a store refuses a request: the code and the status of its answer, as one of the known problems.

Here belongs the reading of the stores' answers, which are data: nothing else of their text is used but for display.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pipeline.errors import AccessProblem

_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_STATUS = re.compile(r"\bstatus code: (\d{3})\b")
_REDIRECT = "redirect without LOCATION"
# What a client's error has before and after the content of an answer, and the content's message, as XML or JSON.
_BEFORE_CONTENT = re.compile(r"\bstatus code: \d{3}[^:<{]*(?=: )")
_CONTENT = re.compile(r"[<{]")
_AFTER_CONTENT = "\n\nDebug source"
_MESSAGE = re.compile(r"""<Message>([^<]*)</Message>|"message":\s*"([^"\\]*)""")
_SHOWN_CHARACTERS = 400
# What a client says of an account that it can't use for a signature.
_UNUSABLE_ACCOUNT = re.compile(
    r"Invalid Access Key|Unable to (?:open|decode) service account|Invalid RSA key|Error reading pem"
)
# The address at which a machine in a cloud asks for its own account: it is asked if there is no other account.
_MACHINE_ACCOUNT = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal")
_BY_CODE = {
    "InvalidAccessKeyId": AccessProblem.WRONG_KEY, "SignatureDoesNotMatch": AccessProblem.WRONG_KEY,
    "InvalidToken": AccessProblem.WRONG_KEY, "InvalidSecurity": AccessProblem.WRONG_KEY,
    "AuthenticationFailed": AccessProblem.WRONG_KEY, "ExpiredToken": AccessProblem.EXPIRED,
    "ExpiredTokenException": AccessProblem.EXPIRED, "TokenRefreshRequired": AccessProblem.EXPIRED,
    "RequestTimeTooSkewed": AccessProblem.CLOCK, "RequestExpired": AccessProblem.CLOCK,
    "NoSuchBucket": AccessProblem.NO_BUCKET, "ContainerNotFound": AccessProblem.NO_BUCKET,
    "AccessDenied": AccessProblem.NOT_ALLOWED, "AllAccessDisabled": AccessProblem.NOT_ALLOWED,
    "AccountProblem": AccessProblem.NOT_ALLOWED, "MethodNotAllowed": AccessProblem.NOT_ALLOWED,
    "AuthorizationFailure": AccessProblem.NOT_ALLOWED, "AuthorizationPermissionMismatch": AccessProblem.NOT_ALLOWED,
    "InsufficientAccountPermissions": AccessProblem.NOT_ALLOWED, "PermanentRedirect": AccessProblem.OTHER_REGION,
    "AuthorizationHeaderMalformed": AccessProblem.OTHER_REGION, "SlowDown": AccessProblem.BUSY,
    "ServiceUnavailable": AccessProblem.BUSY, "ServerBusy": AccessProblem.BUSY, "InternalError": AccessProblem.BUSY,
    "RequestLimitExceeded": AccessProblem.BUSY,
}  # fmt: skip
_BY_STATUS = {
    401: AccessProblem.WRONG_KEY, 403: AccessProblem.NOT_ALLOWED, 404: AccessProblem.NO_BUCKET,
    429: AccessProblem.BUSY,
}  # fmt: skip
_FIRST_SERVER_ERROR = 500
_NO_SUCH_RANGE = 416
_JAVA_CLASS = re.compile(r"\b[A-Za-z]+Exception\b")
_JAVA_STATUS = re.compile(r"\bStatus Code: (\d{3})\b")
_BY_CLASS = {
    "UnknownStoreException": AccessProblem.NO_BUCKET,
    "NoAwsCredentialsException": AccessProblem.NO_ACCOUNT,
    "NoAuthWithAWSException": AccessProblem.NO_ACCOUNT,
}


_MARK = "storage: "


class StoreError(OSError):
    """A store refuses a request, or doesn't answer. `problem` is None if the answer has another reason.

    Its text begins with the problem, so that it can be read again after pyarrow has replaced the error.
    """

    def __init__(self, answer: str, problem: AccessProblem | None) -> None:
        super().__init__(answer if problem is None else f"{_MARK}{problem.value}: {answer}")
        self.answer, self.problem = answer, problem


@contextmanager
def kept_store_errors() -> Iterator[None]:
    """Raise a StoreError of the block as it is. pyarrow's readers of Parquet raise a plain OSError with its text."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        _, mark, text = str(error).partition(_MARK)
        problem = next((one for one in AccessProblem if mark and text.startswith(f"{one.value}: ")), None)
        if problem is None:
            raise
        raise StoreError(text.removeprefix(f"{problem.value}: "), problem) from error


def problem_by_code(answer: str) -> AccessProblem | None:
    """The problem that the code in an answer reports. If it has no code that is known, None."""
    code = _CODE.search(answer)
    return None if code is None else _BY_CODE.get(code[1])


def shown_answer(error: BaseException) -> str:
    """The text of a client's error that may be shown: of a store's answer its status, code and message.

    The rest of an answer is left out. A store may repeat a token there.
    """
    text, _, _ = str(error).partition(_AFTER_CONTENT)
    before, code, message = _BEFORE_CONTENT.search(text), _CODE.search(text), _MESSAGE.search(text)
    shown = _CONTENT.split(text, maxsplit=1)[0] if before is None else text[: before.end()]
    text = ": ".join(part for part in (shown, code and code[1], message and (message[1] or message[2])) if part)
    return " ".join(text.split())[:_SHOWN_CHARACTERS]


def is_beyond_the_end(error: str) -> bool:
    """Whether a client's error is the answer to a request for bytes after the end of a file."""
    status = _STATUS.search(error)
    return status is not None and int(status[1]) == _NO_SUCH_RANGE


def problem_in(error: str) -> AccessProblem | None:
    """The problem that a client's error reports, by the code or the status of the answer.

    Without an answer, the storage is not reachable. If the answer has another reason, None.
    """
    by_code = problem_by_code(error)
    if by_code is not None:
        return by_code
    if _MACHINE_ACCOUNT.search(error):
        return AccessProblem.NO_ACCOUNT
    if _REDIRECT in error:
        return AccessProblem.OTHER_REGION
    if _UNUSABLE_ACCOUNT.search(error):
        return AccessProblem.WRONG_KEY
    status = _STATUS.search(error)
    if status is None:
        return AccessProblem.UNREACHABLE
    number = int(status[1])
    return AccessProblem.BUSY if number >= _FIRST_SERVER_ERROR else _BY_STATUS.get(number)


def problem_in_java(message: str, classes: Iterable[str]) -> AccessProblem:
    """The problem that an error of Hadoop's file systems reports. Without an answer, the storage is not reachable."""
    names = {name.rpartition(".")[2] for name in (*classes, *_JAVA_CLASS.findall(message))}
    for name, problem in _BY_CLASS.items():
        if name in names:
            return problem
    by_code = next((problem for code, problem in _BY_CODE.items() if re.search(rf"\b{code}\b", message)), None)
    if by_code is not None:
        return by_code
    status = _JAVA_STATUS.search(message)
    if status is None:
        return AccessProblem.UNREACHABLE
    number = int(status[1])
    return AccessProblem.BUSY if number >= _FIRST_SERVER_ERROR else _BY_STATUS.get(number, AccessProblem.NOT_ALLOWED)

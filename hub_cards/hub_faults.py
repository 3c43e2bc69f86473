"""What went wrong between us and the Hub: in one line that says what to do, and whether trying again can help."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from huggingface_hub import constants
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,  # of the HTTP library that huggingface_hub uses, whichever it is
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)

from reluformer.configuration.errors import UserError, one_line

Result = TypeVar("Result")

TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each further attempt
LONGEST_WAIT = 300.0  # what Retry-After may ask for; a person should not watch a program sleep for longer


@dataclass(frozen=True)
class Fault:
    """what: happened, in one line. transient: trying again can help. retry_after: seconds the Hub asks to wait."""

    what: str
    transient: bool = False
    retry_after: float | None = None


def with_retries(
    attempt: Callable[[], Result],
    *,
    repo_id: str,
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Calls `attempt` until it succeeds, at most 1 + len(WAITS) times, and tells each further attempt before its wait.

    Raises:
        UserError: a fault of the Hub or of the connection that trying again does not mend, or did not.
    """
    for number, wait in enumerate((*WAITS, None), start=1):
        try:
            return attempt()
        except UserError:
            raise
        except (
            Exception
        ) as error:  # sorted out at once: what is neither the Hub's nor the connection's is raised as it is
            fault = fault_of(error, repo_id)
            if fault is None:
                raise
            if not fault.transient:
                raise UserError(fault.what) from error
            if wait is None:
                raise UserError(
                    f"{fault.what}; gave up after {number} attempts: run the same command again later"
                ) from error
            seconds = wait if fault.retry_after is None else fault.retry_after
            if seconds > LONGEST_WAIT:
                raise UserError(
                    f"{fault.what}; the Hub asks to wait {seconds:,.0f} s: run the same command again then"
                ) from error
            tell(f"{fault.what}; attempt {number + 1} of {len(WAITS) + 1} in {seconds:g} s")
            sleep(seconds)
    raise AssertionError("the last wait is None")


def fault_of(error: BaseException, repo_id: str) -> Fault | None:
    """What an exception of huggingface_hub means; None for one that has nothing to do with the Hub.

    huggingface_hub wraps what happens in an upload into a RuntimeError, so that the causes are looked at too.
    """
    causes = list(_with_causes(error))
    for cause in causes:
        fault = _fault_of_one(cause, repo_id)
        if fault is not None:
            return fault
    if isinstance(error, RuntimeError):  # of the upload, by LFS or Xet, whose own errors have no class in Python
        return Fault(f"{repo_id}: the upload failed ({one_line(error)})", transient=True)
    if isinstance(error, ValueError):  # an answer that is not what the client expects, such as a refused card
        return Fault(f"{repo_id}: the Hub refuses: {one_line(error)}")
    return None


def _fault_of_one(error: BaseException, repo_id: str) -> Fault | None:
    if isinstance(error, OfflineModeIsEnabled):
        return Fault("HF_HUB_OFFLINE is set, so nothing can be published: unset it (--dry-run needs no network)")
    if isinstance(error, LocalTokenNotFoundError):
        return Fault(no_token())
    if isinstance(error, HfHubHTTPError):
        return _fault_of_answer(error, repo_id)
    if isinstance(error, (HTTPError, ConnectionError, TimeoutError)):
        reason = one_line(error) or type(error).__name__
        return Fault(f"the connection to {constants.ENDPOINT} failed ({reason})", transient=True)
    if isinstance(error, json.JSONDecodeError):  # of a proxy's or an overloaded server's page
        return Fault(f"{constants.ENDPOINT} answered with something that is not JSON", transient=True)
    return None


def no_token() -> str:
    """The line for a user who has not logged in."""
    return (
        f"no token for {constants.ENDPOINT}: make one with write access at {constants.ENDPOINT}/settings/tokens, then run "
        "`hf auth login` or set HF_TOKEN"
    )


def _fault_of_answer(error: HfHubHTTPError, repo_id: str) -> Fault:
    status = error.response.status_code
    said = f" ({one_line(error.server_message)})" if error.server_message else ""
    owner = repo_id.partition("/")[0]
    if status in TRANSIENT_STATUS:
        what = "asks for fewer requests" if status == 429 else "has a problem of its own"
        return Fault(f"the Hub {what}: HTTP {status}{said}", transient=True, retry_after=retry_after(error))
    tokens = f"{constants.ENDPOINT}/settings/tokens"
    advice = {
        400: "it refuses what was sent",
        401: f"the token is not valid: make a new one with write access at {tokens}, then `hf auth login` or HF_TOKEN",
        402: f"the account {owner} has to pay for this, or has no room left",
        403: f"the token may not write there: it needs write access to {owner}, and you must be a member if that is an "
        f"organisation; see {tokens}",
        404: f"not found: is {owner} a user or an organisation, and can your token see the repository?",
        409: "somebody has changed it at the same time: run the same command again",
        412: "somebody has changed it at the same time: run the same command again",
        413: "a file is larger than it takes",
    }
    return Fault(f"{repo_id}: {advice.get(status, 'the Hub refuses')}: HTTP {status}{said}")


def retry_after(error: HfHubHTTPError) -> float | None:
    """Seconds of the header Retry-After, which holds seconds or a date; None without it."""
    value = (error.response.headers.get("Retry-After") or "").strip()
    if value.isdigit():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:  # no header, or none that can be understood: our own waits
        return None
    return max((date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__

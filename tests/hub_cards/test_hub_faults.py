"""What a fault of the Hub is told as, and which is tried again. Nothing here reaches a network."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from reluformer.configuration.errors import UserError
from reluformer.hub_cards import hub_faults
from reluformer.hub_cards.hub_faults import LONGEST_WAIT, WAITS, fault_of, with_retries

REPO = "me/little"


class Answer:
    """What of a response the error looks at."""

    def __init__(self, status, **headers):
        self.status_code, self.headers, self.request = status, headers, None


def refused(status, message=None, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return HfHubHTTPError("several\nlines", response=Answer(status, **headers), server_message=message)


def wrapped(cause):
    error = RuntimeError("Error while uploading 'model.safetensors' to the Hub.")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "transient", "words"),
    [
        (refused(401), False, "the token is not valid"),
        (refused(403, "no\nrights"), False, "it needs write access to me"),
        (refused(404), False, "is me a user or an organisation"),
        (refused(409), False, "run the same command again"),
        (refused(412), False, "run the same command again"),
        (refused(418, "I am a teapot"), False, "the Hub refuses: HTTP 418 (I am a teapot)"),
        (refused(429), True, "asks for fewer requests: HTTP 429"),
        (refused(503), True, "a problem of its own: HTTP 503"),
        (wrapped(refused(502)), True, "HTTP 502"),
        (wrapped(refused(403)), False, "HTTP 403"),
        (wrapped(None), True, "the upload failed (Error while uploading"),
        (hub_faults.HTTPError("Server disconnected"), True, "failed (Server disconnected)"),
        (ConnectionResetError("reset by peer"), True, "failed (reset by peer)"),
        (OfflineModeIsEnabled("offline"), False, "HF_HUB_OFFLINE is set"),
        (json.JSONDecodeError("Expecting value", "<html>", 0), True, "something that is not JSON"),
        (ValueError("Invalid metadata in README.md.\n- license"), False, "Invalid metadata in README.md. - license"),
    ],
    ids=lambda value: None if isinstance(value, bool) else str(value)[:30].replace("\n", " "),
)
def test_a_fault_is_one_line_and_tells_whether_it_may_pass(error, transient, words):
    fault = fault_of(error, REPO)
    assert fault.transient is transient
    assert words in fault.what and "\n" not in fault.what


def test_what_is_not_the_hubs_is_no_fault():
    def attempt():
        raise ZeroDivisionError("ours")

    assert fault_of(KeyError("ours"), REPO) is None
    with pytest.raises(ZeroDivisionError, match="ours"):
        with_retries(attempt, repo_id=REPO, tell=print)


class Attempts:
    """Fails with each error in turn, then succeeds; counts."""

    def __init__(self, *errors):
        self.errors, self.count = list(errors), 0

    def __call__(self):
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_waits_double_and_every_further_attempt_is_told():
    attempts, told, waits = Attempts(*[refused(500)] * 5), [], []
    assert with_retries(attempts, repo_id=REPO, tell=told.append, sleep=waits.append) == "done"
    assert waits == list(WAITS) and len(told) == 5 and "attempt 2 of 6 in 1 s" in told[0]


def test_it_gives_up_after_the_last_wait():
    attempts, waits = Attempts(*[refused(503)] * 9), []
    with pytest.raises(UserError, match="HTTP 503; gave up after 6 attempts"):
        with_retries(attempts, repo_id=REPO, tell=lambda line: None, sleep=waits.append)
    assert attempts.count == 6 and waits == list(WAITS)


def test_a_refusal_is_not_tried_again():
    attempts = Attempts(refused(403))
    with pytest.raises(UserError, match="HTTP 403"):
        with_retries(attempts, repo_id=REPO, tell=print, sleep=lambda seconds: None)
    assert attempts.count == 1


def test_retry_after_is_honoured_up_to_a_bound():
    waits = []
    attempts = Attempts(refused(429, Retry_After="17"), refused(429, Retry_After="soon"))
    with_retries(attempts, repo_id=REPO, tell=lambda line: None, sleep=waits.append)
    assert waits == [17, WAITS[1]]
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 50 < fault_of(refused(429, Retry_After=in_a_minute), REPO).retry_after <= 60
    assert fault_of(refused(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"), REPO).retry_after == 0
    with pytest.raises(UserError, match=r"asks to wait 3,600 s: run the same command again then"):
        with_retries(Attempts(refused(429, Retry_After="3600")), repo_id=REPO, tell=print, sleep=waits.append)
    assert len(waits) == 2 and LONGEST_WAIT < 3600

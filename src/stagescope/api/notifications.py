"""Notify others of an alarm: a command that gets it as JSON, or a web server."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shlex
import shutil
import subprocess
import urllib.request
from http.client import HTTPException
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SECRET_VARIABLE = "STAGESCOPE_WEBHOOK_SECRET"  # noqa: S105 - the name of the variable
SIGNATURE_HEADER = "X-Stagescope-Signature"
PATIENCE_S = 30.0


def parse_command(text: str) -> list[str]:
    """Return the words of a command. Raises UsageError if there are none, or if its program does not exist."""
    try:
        words = shlex.split(text)
    except ValueError as reason:
        raise UsageError.unusable_value("--on-alarm", text, str(reason)) from reason
    if not words:
        raise UsageError.unusable_value("--on-alarm", text, "it is empty")
    if shutil.which(words[0]) is None:
        raise UsageError.unusable_value("--on-alarm", text, f"there is no program {words[0]!r}")
    return words


def check_url(text: str, option: str = "--webhook") -> str:
    """Return the address of a server. Raises UsageError unless it begins with http:// or https:// and has a host."""
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or half of an IPv6 address
        is_usable = False
    if not is_usable or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError.unusable_value(
            option, text, "expected an address that begins with http:// or https://"
        )
    return text


class Notifier:
    """Sends each alarm to a command, to a webhook, or to both, without waiting for them.

    The command gets the alarm as JSON on its standard input, and no shell interprets it. The webhook gets it as the
    body of a POST request. If the environment variable STAGESCOPE_WEBHOOK_SECRET is set, the header
    X-Stagescope-Signature has "sha256=" and the HMAC-SHA256 of the body with it. `warn` is called with a sentence if a
    notification fails.
    """

    def __init__(self, command: Sequence[str], url: str | None, warn: Callable[[str], object]) -> None:
        """Notify this command, if it has words, and this address, if there is one."""
        self._command = list(command)
        self._url = url
        self._warn = warn
        self._threads: list[Thread] = []

    def send(self, facts: Mapping[str, Any]) -> None:
        """Send an alarm as plain data."""
        body = json.dumps(facts).encode()
        senders = [self._run] if self._command else []
        senders += [self._post] if self._url else []
        for sender in senders:
            thread = Thread(target=sender, args=(body,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait(self) -> None:
        """Wait until everything was sent, or given up."""
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)

    def _run(self, body: bytes) -> None:
        try:
            done = subprocess.run(
                self._command, input=body + b"\n", timeout=PATIENCE_S, check=False, stdout=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError) as reason:
            self._warn(f"--on-alarm failed: {reason}")
            return
        if done.returncode:
            self._warn(f"--on-alarm: {self._command[0]} exited with {done.returncode}")

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        secret = os.environ.get(SECRET_VARIABLE)
        if secret:
            digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE_HEADER] = f"sha256={digest}"
        request = urllib.request.Request(self._url or "", data=body, headers=headers)  # noqa: S310 - checked
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S):  # noqa: S310 - checked: http or https
                return
        except (
            OSError,
            HTTPException,
            ValueError,
        ) as reason:  # the last for a redirection to an invalid address
            self._warn(f"--webhook failed: {reason}")

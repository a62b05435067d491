"""A headless Chromium without a network, controlled through the DevTools protocol over pipes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1400,1000",
)


class BrowserNotFoundError(Exception):
    """There is no Chromium on this machine."""


class Browser:
    """One page, with the requests that it made."""

    def __init__(self, read: int, write: int) -> None:
        self._session: str | None = None
        self._read, self._write = read, write
        self._buffer, self._number = b"", 0
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == self._number:
                if "error" in received:
                    raise RuntimeError(f"{method}: {received['error']['message']}")
                result: dict[str, Any] = received["result"]
                return result

    def open(self, page: Path, *, scheme: str = "light") -> None:
        """Open a file and wait until everything that it needs has been loaded."""
        self._events.clear()
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for("document.readyState === 'complete'")

    def wait_for(self, expression: str, *, timeout_s: float = 60) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.05)
        return value

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def requests(self) -> dict[str, str]:
        """Return the URL of each request since `open`, with the text of its error or an empty string."""
        urls, errors = {}, {}
        for event in self._events:
            parameters = event.get("params", {})
            if event["method"] == "Network.requestWillBeSent":
                urls[parameters["requestId"]] = parameters["request"]["url"]
            elif event["method"] == "Network.loadingFailed":
                errors[parameters["requestId"]] = parameters["errorText"]
        return {url: errors.get(number, "") for number, url in urls.items()}

    def messages(self) -> list[str]:
        """Return errors in the console since `open`."""
        logged = [event["params"]["entry"] for event in self._events if event["method"] == "Log.entryAdded"]
        raised = [event["params"] for event in self._events if event["method"] == "Runtime.exceptionThrown"]
        texts = [entry["text"] for entry in logged if entry["level"] == "error"]
        return texts + [each["exceptionDetails"]["text"] for each in raised]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise BrowserNotFoundError(
            "no Chromium found; install it: apt-get install --no-install-recommends chromium"
        )
    (command_read, command_write), (answer_read, answer_write) = os.pipe(), os.pipe()

    def use_pipes() -> None:
        """Chromium reads commands from descriptor 3, and writes answers to 4."""
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in (command_read, answer_write)]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    command = [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, close_fds=False, preexec_fn=use_pipes, stdout=quiet, stderr=quiet
    ) as process:
        os.close(command_read)
        os.close(answer_write)
        try:
            yield Browser(answer_read, command_write)
        finally:
            process.kill()
            os.close(command_write)
            os.close(answer_read)

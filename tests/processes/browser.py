"""A headless Chromium for tests that need one, driven through its DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulations.processes.needs import found

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
OPTIONS += ("--remote-debugging-pipe", "--no-first-run", "--disable-extensions", "--disable-background-networking")
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""the browser reads commands from descriptor 3 and writes answers to 4"""


class Browser:
    """One page of a browser whose profile is in `folder`. Use it as a context."""

    def __init__(self, folder: Path, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.complaints: list[str] = []
        """exceptions, errors of the console and of the content security policy, and dialogs"""
        self._number, self._left, self._session = 0, b"", ""
        there, self._write = _pipe()
        self._read, back = _pipe()
        launch = [sys.executable, "-c", LAUNCH, str(there), str(back)]
        argv = [*launch, found("chromium"), *OPTIONS, f"--user-data-dir={folder}"]
        with (folder / "browser.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, pass_fds=(there, back), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(folder)
            )
        os.close(there)
        os.close(back)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        phone = width < 700
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page. A promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command, and return its result."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = os.read(self._read, 1 << 20)
            assert piece, f"the browser has ended with {self._process.poll()}"
            self._left += piece
        line, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(told["entry"]))
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {told['message']}")


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, with numbers that the browser does not use."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}

"""A headless Chromium, driven over its debugging pipe: no driver and no port are needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """The program named by HEALGP_CHROMIUM, or one of the usual names in PATH."""
    given = os.environ.get("HEALGP_CHROMIUM")
    if given:
        return shutil.which(given)
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser of its own; `events` are what it has reported."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._out = os.pipe()
        self._in, write = os.pipe()
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank",
        ]  # fmt: skip
        # the browser reads commands from descriptor 3 and writes to 4
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        script = f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *options],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (read, write, *theirs):
            os.close(end)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict] = []
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def ask(self, method: str, **params: object) -> dict:
        """The answer to a command of the DevTools protocol."""
        self._number += 1
        message: dict = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60.0)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self, seconds: float) -> dict:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0.0))
            assert ready, "the browser says nothing"
            more = os.read(self._in, 1 << 20)
            assert more, "the browser has ended"
            self._buffer += more
        text, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path) -> None:
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next(60.0)

    def size(self, width: int, height: int, mobile: bool = False, scale: float = 1.0) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=scale, mobile=mobile,
        )  # fmt: skip

    def media(self, scheme: str = "light", medium: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=medium, features=features)

    def js(self, expression: str) -> object:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def key(self, name: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name,
                windowsVirtualKeyCode=code,
            )  # fmt: skip

    def screenshot(self, path: Path, full: bool = True) -> None:
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        found = self.ask("Page.printToPDF", printBackground=False)
        path.write_bytes(base64.b64decode(found["data"]))

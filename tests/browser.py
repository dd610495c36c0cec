"""A real browser, driven through the DevTools protocol over a pipe: no library, no open port."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_HIGH = 20  # file descriptors from here on are in nobody's way


def find() -> str:
    """Chromium's path; a test skips where there is none, but fails in CI, which installs it."""
    found = shutil.which("chromium")
    if found is None and os.environ.get("FLEXPREDICT_CI"):
        pytest.fail("FLEXPREDICT_CI is set, but there is no chromium: .ci/run should install it")
    if found is None:
        pytest.skip("no chromium here: apt-get install chromium to see pages in a real browser")
    return found


class Page:
    """What a page did while it was open."""

    def __init__(self, send: Any, receive: Any) -> None:
        self._send, self._receive = send, receive
        self._count = 0
        self._loaded: set[str] = set()
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def open(self, path: Path, width: int = 1440, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        loader = self.call("Page.navigate", url=path.resolve().as_uri())["loaderId"]
        while loader not in self._loaded:  # which may be said before the answer
            self._next()

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        printed = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(printed["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._send.write(json.dumps(message).encode() + b"\0")
        self._send.flush()
        while (answer := self._next()).get("id") != self._count:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            assert byte, "the browser is gone"
            data += byte
        message = dict(json.loads(data))
        about = message.get("params", {})
        match message.get("method"):
            case "Page.lifecycleEvent" if about["name"] == "load":
                self._loaded.add(about["loaderId"])
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.errors.append(str(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.errors.append(str(about["entry"]))
        return message


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page in a browser of its own; `profile` is a new folder."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, _HIGH) for end in (to_read, from_write)]
    os.close(to_read)
    os.close(from_write)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
        "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
    # Chromium reads from descriptor 3 and writes to 4.
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", find(), *options],
        pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for end in ends:
        os.close(end)
    try:
        with open(to_write, "wb") as send, open(from_read, "rb") as receive:
            page = Page(send, receive)
            yield page
            page._session = None
            page.call("Browser.close")
    finally:
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

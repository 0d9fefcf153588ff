"""
Chromium for tests, driven over its debugging protocol: open a page, ask it, look at it, and know
what it requested and complained of.

    with chromium() as browser:
        page = browser.open(path.as_uri(), width=390, dark=True)
        assert page.evaluate("document.title") == "..." and page.errors == [] and
        page.requests == [...]
"""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from websocket import WebSocket, WebSocketTimeoutException, create_connection

from attnverify import ROOT

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)
DRIVEN = (
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


@dataclass
class Page:
    """
    One tab.

    requests  every address that it asked for, in order; errors: every exception, failed request and
              console error, in words
    """

    socket: WebSocket
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    numbers: Any = field(default_factory=lambda: count(1))

    def call(self, method: str, seconds: float = 60.0, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its result; what happens meanwhile is noted."""
        number = next(self.numbers)
        self.socket.settimeout(seconds)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := json.loads(self.socket.recv())).get("id") != number:
            self.note(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return dict(message["result"])

    def note(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        if event.get("method") == "Network.loadingFailed" and not about.get("canceled"):
            self.errors.append(f"request failed: {about['errorText']}")
        if event.get("method") == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        if event.get("method") == "Runtime.consoleAPICalled" and about["type"] in (
            "error",
            "assert",
        ):
            self.errors.append(
                " ".join(str(each.get("value", each.get("description"))) for each in about["args"])
            )
        if event.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def listen(self, seconds: float) -> None:
        """Note what happens for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                self.note(json.loads(self.socket.recv()))
            except WebSocketTimeoutException:
                return

    def evaluate(self, script: str, seconds: float = 60.0) -> Any:
        """The value of an expression of the page, a promise's once it is kept."""
        result = self.call(
            "Runtime.evaluate", seconds, expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(
                result["exceptionDetails"]
                .get("exception", {})
                .get("description", "the script raised")
            )
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 30.0) -> Any:
        """The value of the expression as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"not true within {seconds:g} s: {script}; errors: {self.errors}"
                )
            self.listen(0.1)
        return value

    def press(self, key: str) -> None:
        """One key, by its name: ``Tab``, ``Enter``, ``ArrowRight``."""
        code = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
        }.get(key, 0)
        said = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **said,
            )

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """What is to be seen, or the whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@dataclass
class Browser:
    """A running Chromium, by the port of its debugging protocol, and the pages that it has open."""

    port: int
    pages: list[Page] = field(default_factory=list)

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A new tab that has loaded the address, as wide and as dark as asked for."""
        with urlopen(
            Request(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT"), timeout=30
        ) as answer:
            target = json.load(answer)
        page = Page(create_connection(target["webSocketDebuggerUrl"], timeout=60))
        self.pages.append(page)
        self.pages.append(page)
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.call(
            "Emulation.setFocusEmulationEnabled", enabled=True
        )  # a tab behind another one has no focus to give
        page.call("Page.navigate", url=url)
        page.wait(
            "document.readyState === 'complete' && location.href !== 'about:blank' || "
            f"{json.dumps(url)} === 'about:blank'"
        )
        return page


@contextmanager
def chromium() -> Iterator[Browser]:
    """
    A Chromium with a fresh profile, for as long as the block lasts; FileNotFoundError where there
    is none to start.
    """
    program = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if program is None:
        raise FileNotFoundError(
            "chromium: wanted the program on the path, got none (Debian: apt-get install chromium)"
        )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        started = subprocess.Popen(
            [program, *FLAGS, *DRIVEN, f"--user-data-dir={profile}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        pages: list[Page] = []
        try:
            yield Browser(port_of(Path(profile, "DevToolsActivePort"), started), pages)
        finally:
            for page in pages:
                page.socket.close()
            started.terminate()
            started.wait(timeout=30)


def port_of(file: Path, started: "subprocess.Popen[bytes]", seconds: float = 60.0) -> int:
    """The port that Chromium writes into its profile once it listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and started.poll() is None:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise TimeoutError(
        f"chromium: wanted a port within {seconds:g} s, got none (exit status {started.poll()})"
    )


AXE = ROOT / "build" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
AXE_LINE = "npm install --no-save --prefix build/npm axe-core@4.14.1"


def accessibility(page: Page) -> list[str]:
    """
    What axe-core finds serious or critical on the page, a line each; FileNotFoundError where
    axe-core is not installed.
    """
    if not AXE.exists():
        raise FileNotFoundError(f"axe-core: wanted it under build/npm, got none (run: {AXE_LINE})")
    page.evaluate(AXE.read_text() + "\n0")
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations)",
        seconds=120,
    )
    worst = [
        (fault, node)
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
    return [f"{fault['id']}: {fault['help']}: {node['html'][:200]}" for fault, node in worst]

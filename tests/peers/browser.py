"""A real browser without a screen: Debian's Chromium, driven by its own WebDriver over HTTP."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.conftest import need
from tests.peers.environments import environment

AXE = ("--no-deps", "axe-playwright-python==0.1.8")  # which carries axe-core 4.x
DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium")
_DEADLINE = 60.0  # seconds of one command
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name that WebDriver gives an element's id
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # of which root has none
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)


class Browser:
    """One window. Commands raise `AssertionError` with what the driver says."""

    def __init__(self, port: int) -> None:
        self._port, self._path = port, ""
        options = {"args": [*_FLAGS], "binary": CHROMIUM}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._path = f"/session/{made['sessionId']}"
        self._ask("POST", "/timeouts", {"implicit": 30_000})  # that it looks for an element

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=_DEADLINE)) as connection:
            body = None if content is None else json.dumps(content)
            connection.request(method, self._path + path, body)
            response = connection.getresponse()
            answer = json.loads(response.read())["value"]
        assert response.status == 200, answer
        return answer

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body returns in the page; a promise is waited for."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        """The first element of a CSS selector."""
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def text(self, selector: str) -> str:
        """What an element shows."""
        return str(self._ask("GET", f"/element/{self.find(selector)}/text"))

    def type(self, selector: str, text: str) -> None:
        """Type into a field, or name the file of a file field."""
        self._ask("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def follow(self, selector: str) -> None:
        """Click a link or button, and wait for the page that follows."""
        old = self.find("html")
        self._ask("POST", f"/element/{self.find(selector)}/click", {})
        end = time.monotonic() + _DEADLINE
        while self._is_there(old):
            assert time.monotonic() < end, "no page followed"

    def _is_there(self, element: str) -> bool:
        try:
            self._ask("GET", f"/element/{element}/name")
        except AssertionError:
            return False
        return True

    def press(self, key: str) -> None:
        """Press a key wherever the focus is."""
        steps = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keys", "actions": steps}]
        self._ask("POST", "/actions", {"actions": actions})

    def focused(self) -> str:
        """The visible text of the element that has the focus."""
        return str(self.run("return document.activeElement.textContent.trim()"))

    @property
    def source(self) -> str:
        """The page as it stands."""
        return str(self._ask("GET", "/source"))

    @property
    def url(self) -> str:
        return str(self._ask("GET", "/url"))

    def tell(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show(
        self, width: int, height: int = 800, *, dark: bool = False, media: str = "screen"
    ) -> None:
        """Be a screen of this size, a phone if it is narrow; or the `media` print."""
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def width(self) -> int:
        """The pixels that the page takes, more than those of the screen if it scrolls sideways."""
        return int(self.run("return document.documentElement.scrollWidth"))

    def violations(self, axe: str) -> list[tuple[str, list[str]]]:
        """What axe-core, of `axe_script`, finds wrong on the page: its rules and their elements."""
        self.run(axe)
        found = self.run("return axe.run(document, {resultTypes: ['violations']})")
        return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]]

    def scripts(self, *, on: bool) -> None:
        """Whether pages may run scripts; those of `run` may."""
        self.tell("Emulation.setScriptExecutionDisabled", value=not on)

    def console_messages(self) -> list[str]:
        """Return new messages of the console: errors, and violations of policies."""
        return [line["message"] for line in self._ask("POST", "/se/log", {"type": "browser"})]

    def cookies(self) -> list[dict[str, Any]]:
        return list(self._ask("GET", "/cookie"))

    def picture(self, path: Path) -> None:
        """The whole page, as long as it is."""
        shot = self.tell("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._ask("DELETE", "")


def axe_script() -> str:
    """The source of axe-core; skips where PyPI is not."""
    (axe,) = environment("axe", AXE).parent.rglob("axe.min.js")
    return axe.read_text()


@contextmanager
def browser(log: Path) -> Iterator[Browser]:
    """A window of a browser of its own; skips where there is none."""
    need("chromium with chromedriver", found=bool(DRIVER and CHROMIUM))
    with (
        open(log, "wb") as errors,
        subprocess.Popen(
            [str(DRIVER), "--port=0"], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ports = (re.search(r"successfully on port (\d+)", line) for line in process.stdout)
            port = next(filter(None, ports), None)
            assert port, log.read_text()
            with closing(Browser(int(port[1]))) as window:
                yield window
        finally:
            process.terminate()
            process.wait(_DEADLINE)

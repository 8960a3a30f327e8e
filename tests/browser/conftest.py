"""A headless Chromium for the tests of this folder: `pytest -m browser`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars")  # fmt: skip


class Browser:
    """A Chromium with fresh settings. `driver` is selenium's."""

    def __init__(self, driver):
        self.driver = driver
        self._requests = []

    def open(self, page, width=1200, height=900, dark=False):
        """A file, once it has loaded."""
        self.driver.set_window_size(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self._requests.clear()
        self.console_errors()  # those of the page before are not this one's
        self.requests()
        self._requests.clear()
        self.driver.get(Path(page).resolve().as_uri())

    def run(self, script, *arguments):
        """JavaScript in the page: `return` gives its value."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, seconds=10):
        """Until a JavaScript expression is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, 0.05).until(lambda _: self.run(f"return Boolean({condition})"), condition)

    def console_errors(self):
        """Errors and warnings on the console since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self):
        """The addresses of all that was asked for since the page was opened, but for what is in the page itself."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                self._requests.append(message["params"].get("request", message["params"])["url"])
        return [url for url in self._requests if not url.startswith(("data:", "blob:", "about:"))]

    def screenshot(self, path):
        """The whole page."""
        import base64

        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        Path(path).write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[browser]'")
    from selenium.webdriver.chrome.service import Service

    program, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if program is None or driver is None:
        pytest.skip("needs Chromium and its driver: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield Browser(started)
    started.quit()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site: SITE if that is set, or built for this."""
    if given := os.environ.get("SITE"):
        return Path(given).resolve()
    pytest.importorskip("myst_nb", reason="needs what the site is built with: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONPATH": str(DOCS.parent)}
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto", str(DOCS), str(folder)]
    subprocess.run(command, env=environment, check=True)
    return folder

"""JupyterLab as a child process that leaves nothing behind, and a browser that cannot leave the machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM_FLAGS = [
    "--no-sandbox",  # Chromium refuses to run as root with it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
]
# The cells out of sight must be in the page too, or nobody could look at them.
SETTINGS = {"@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"}}
FOLDERS = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
)
START_SECONDS = 60
STOP_SECONDS = 15


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, its token, the folder it serves, and where its watchers write."""

    url: str
    token: str
    root: Path
    network_log: Path
    faint_labels_log: Path

    @property
    def address(self) -> str:
        """Where JupyterLab is opened, without the tabs of those who opened it before."""
        return f"{self.url}lab?reset&token={self.token}"

    def outside_hosts(self) -> list[str]:
        """The hosts that the server and its kernels have reached for until now."""
        return self.network_log.read_text().split() if self.network_log.exists() else []

    def faint_labels(self) -> list[str]:
        """The words of figures that were hard to read until now."""
        return self.faint_labels_log.read_text().splitlines() if self.faint_labels_log.exists() else []


@contextmanager
def running_lab(home: Path, **environment: str) -> Iterator[Lab]:
    """JupyterLab serving the empty folder `home/notebooks`; settings, runtime files and logs stay in `home`.

    `environment` holds variables for server and kernels beside those of this process.
    """
    root = home / "notebooks"
    root.mkdir()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={root}"]
    command += ["--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly"]
    with (home / "jupyterlab.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=home, env=_environment(home) | environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        info = _wait_for_server(home, server)
        yield Lab(info["url"], info["token"], root, home / "network.log", home / "faint_labels.log")
    finally:
        _stop(server)


def _environment(home: Path) -> dict[str, str]:
    for name, settings in SETTINGS.items():
        file = home / "JUPYTERLAB_SETTINGS_DIR" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings))
    watch = home / "path" / "sitecustomize.py"
    watch.parent.mkdir()
    shutil.copy(Path(__file__).with_name("network_watch.py"), watch)
    path = os.pathsep.join(filter(None, [str(watch.parent), os.environ.get("PYTHONPATH")]))
    folders = {name: str(home / name) for name in FOLDERS}
    startup = home / "IPYTHONDIR" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("faint_labels.py"), watch.parent)
    (startup / "watch.py").write_text("import faint_labels\n")  # a module: its names are none of the lesson's
    logs = {"NETWORK_WATCH_LOG": str(home / "network.log"), "FAINT_LABELS_LOG": str(home / "faint_labels.log")}
    return {**os.environ, **folders, "PYTHONPATH": path, **logs}


def _wait_for_server(home: Path, server: subprocess.Popen[bytes]) -> dict[str, str]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        for file in (home / "JUPYTER_RUNTIME_DIR").glob("jpserver-*.json"):
            with suppress(json.JSONDecodeError):  # caught half written
                return json.loads(file.read_text())
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{(home / 'jupyterlab.log').read_text()[-3000:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    # On SIGTERM the server ends its kernels, which live in process groups of their own.
    for ending in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, ending)
            server.wait(STOP_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def find_chromium() -> str:
    """The path of Chromium. Without it the tests are skipped, but fail in CI, where it must be installed."""
    path = shutil.which("chromium")
    if path is None:
        advice = "Chromium is not installed; on Debian: sudo apt-get install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(advice)
    return path


@contextmanager
def running_browser(chromium: str) -> Iterator[Browser]:
    """Headless Chromium with a fresh profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()

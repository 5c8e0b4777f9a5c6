"""The image of conf/container is built by buildah, and runs as it says.

No registry of images is needed: the programs of this machine's /usr stand for those of the base
image, whose Python is another one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import pytest

from demo.steps import free_port
from tests.conftest import MakeIndex, need
from tests.integration.test_server_live import until
from tests.peers.environments import ROOT
from tests.support.captures import capture

pytestmark = pytest.mark.peer
PROGRAMS = ("--volume", "/usr:/usr:ro", "--volume", "/etc/ssl/certs:/etc/ssl/certs:ro")
ETC = ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf", "ld.so.cache")
USER = 10001


class Builder:
    """Runs buildah with images and containers of its own."""

    def __init__(self, home: Path) -> None:
        self._words = ["buildah", f"--root={home}/root", f"--runroot={home}/run",
                       "--storage-driver=vfs"]  # fmt: skip
        self._env = {**os.environ, "BUILDAH_ISOLATION": "chroot"}

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
        line = [*self._words, *map(str, words)]
        return subprocess.Popen(line, env=self._env, text=True, **options)

    def __call__(self, *words: str | Path) -> str:
        with self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            shown, messages = process.communicate()
        assert not process.returncode, shown[-1500:] + messages[-1500:]
        return shown


def pack_base(target: Path) -> None:
    """Write the root of a base image, whose programs are mounted."""
    with tarfile.open(target, "w") as base:
        for name in (
            ".",
            "usr",
            "etc",
            "proc",
            "sys",
            "dev",
            "run",
            "root",
            "var",
            "var/tmp",
            "tmp",
        ):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if "tmp" in name else 0o755
            base.addfile(folder)
        for name in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            base.addfile(link)
        for name in ETC:
            base.add(f"/etc/{name}", f"etc/{name}")


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    """A builder that has the image, as ``dedupindex``."""
    need("buildah", found=shutil.which("buildah") is not None)
    need("root", found=os.geteuid() == 0)
    with TemporaryDirectory(dir="/var/tmp") as name:
        home = Path(name)
        home.chmod(0o755)  # the user of the image looks through it
        buildah = Builder(home)
        pack_base(home / "base.tar")
        lines = ("FROM scratch", "ADD base.tar /", "ENV PATH=/usr/sbin:/usr/bin")
        (home / "Containerfile").write_text("\n".join(lines))
        try:
            buildah("build", "--tag", "base", home)
            buildah(
                *("build", "--from", "localhost/base", *PROGRAMS, "--format", "docker"),
                *("--env", "PIP_CERT=/etc/ssl/certs/ca-certificates.crt"),
                *("--file", ROOT / "conf" / "container" / "Containerfile"),
                *("--tag", "dedupindex", ROOT),
            )
            yield buildah
        finally:
            buildah("rm", "--all")
            buildah("rmi", "--all", "--force")


def test_the_image_serves_as_its_user_and_is_healthy(
    builder: Builder, make_index: MakeIndex
) -> None:
    settings = json.loads(builder("inspect", "--type", "image", "dedupindex"))["Docker"]["config"]
    index, port = make_index([capture(1)]), free_port()
    for path in (index, *index.rglob("*")):
        os.chown(path, USER, USER)
    assert list(settings["Volumes"]) == ["/index"]
    container = builder("from", "dedupindex").strip()
    # buildah mounts a volume of its own as well, in any order, so it may hide the index.
    builder("config", "--volume", "/index-", container)

    def run(*words: str) -> Sequence[str]:
        mounts = (*PROGRAMS, "--volume", f"{index}:/index")
        return ["run", *mounts, container, "--", "/usr/bin/env", *words]  # looks after mounting

    healthy = [word.replace(":8484/", f":{port}/") for word in settings["Healthcheck"]["Test"][1:]]
    words = [*settings["Entrypoint"], *settings["Cmd"], "--port", str(port), "--open"]
    assert builder(*run("id", "-u")).strip() == str(USER)
    with builder.start(*run(*words), stderr=sys.stderr, start_new_session=True) as server:
        try:
            assert until(lambda: answers(port))
            builder(*run(*healthy))
        finally:
            os.killpg(server.pid, signal.SIGTERM)
    assert until(lambda: not answers(port))  # buildah does not wait for it
    with pytest.raises(AssertionError):
        builder(*run(*healthy))


def answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/stats", timeout=5) as answer:
            return int(json.load(answer)["captures"]) == 1
    except OSError:
        return False

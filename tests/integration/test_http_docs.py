"""The requests that docs/http.md shows, as they are typed, and the answers that it shows."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from base64 import b32encode
from pathlib import Path
from typing import Any

from demo.steps import free_port
from tests.support.paths import ROOT

SHOWN = "FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN"  # the digest of the page's examples
BODY = b"x" * 1256
DIGEST = b32encode(hashlib.sha1(BODY).digest()).decode()
HTTP = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: image/png\r\n"
    b'ETag: "5f1a"\r\n'
    b"Last-Modified: Mon, 02 Nov 2026 08:00:00 GMT\r\n"
    b"Content-Length: 1256\r\n\r\n" + BODY
)
RECORD = (
    "WARC/1.1\r\n"
    "WARC-Type: response\r\n"
    "WARC-Target-URI: http://example.com/\r\n"
    "WARC-Date: 2026-11-20T09:14:17Z\r\n"
    "WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-000000000001>\r\n"
    "Content-Type: application/http;msgtype=response\r\n"
    f"WARC-Payload-Digest: sha1:{DIGEST}\r\n"
    f"Content-Length: {len(HTTP)}\r\n\r\n"
)
PAGE = (ROOT / "docs/http.md").read_text().replace(SHOWN, DIGEST)


VARYING = {"record_id", "container", "offset"}


def check_shown(shown: dict[str, Any], answer: dict[str, Any]) -> None:
    """Check that an answer has all fields that the page shows, with the same values."""
    for name in shown.keys() - VARYING:
        if isinstance(shown[name], dict):
            check_shown(shown[name], answer[name])
        else:
            assert answer[name] == shown[name], name
    assert shown.keys() <= answer.keys()


def test_each_request_is_answered_as_shown(tmp_path: Path) -> None:
    (tmp_path / "warcs").mkdir()
    (tmp_path / "warcs" / "a.warc").write_bytes(RECORD.encode() + HTTP + b"\r\n\r\n")
    port = free_port()
    typed = re.findall(r"^(?:    )?(curl (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    assert len(typed) == 5
    lookup, last, *crawl = [
        line.replace("curl", "curl -sS --fail", 1).replace("8484", str(port)) for line in typed
    ]
    server = f"http://127.0.0.1:{port}"
    script = "\n".join(
        [
            "trap 'kill $(jobs -p) 2>/dev/null || :' EXIT",
            "bin/index --all --etag warcs my-index",
            f"bin/serve my-index --port {port} &",
            f"curl -sS --retry 60 --retry-delay 1 --retry-connrefused {server}/healthz",
            *("echo answers", f"{lookup}; echo", f"{last}; echo"),
            *(f"echo; {line} -H 'Accept: text/plain'; echo" for line in (lookup, last)),
            *("echo crawls", *(f"{line}; echo" for line in crawl)),
            f"curl -sS --fail {server}/crawls/weekly",
        ]
    )
    (tmp_path / "bin").symlink_to(ROOT / "bin")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers, crawls = done.stdout.split("answers\n")[1].split("crawls\n")
    found, last_found, *lines = answers.split("\n", 2)
    blocks = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    for text, answer in zip(blocks, (found, last_found), strict=True):
        check_shown(json.loads(text.replace(", …}", "}")), json.loads(answer))
    headers = re.findall(r"(?:^    [A-Z][\w-]*: .*\n)+", PAGE, re.MULTILINE)
    texts = [re.sub("urn:uuid:[^>]*", "urn:uuid:…", block) for block in lines[0].split("\n\n")]
    shown = [re.sub("^    ", "", block, flags=re.MULTILINE).strip() for block in headers]
    assert [text.replace("\r", "").strip() for text in texts if text.strip()] == shown
    state = json.loads(crawls.splitlines()[-1])
    assert (state["state"], state["exit"]) == ("committed", "Finished")

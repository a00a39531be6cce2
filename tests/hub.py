"""A stand-in for the hub: as much of its HTTP API as creating a repository and pushing a folder to it takes."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub(ThreadingHTTPServer):
    """What has arrived. Files of 10 kB and more come as objects of Git LFS, as do the hub's."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.created: list[str] = []
        self.objects: dict[str, bytes] = {}  # sha256 -> content
        self.commits: list[tuple[str, dict[str, bytes]]] = []  # (message, path -> content)
        self.tokens: set[str] = set()

    @property
    def files(self) -> dict[str, bytes]:
        return {path: content for _, files in self.commits for path, content in files.items()}


class Requests(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.tokens.add(self.headers.get("Authorization", ""))
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.created.append(name)
            return self.answer({"url": f"{self.server.url}/{name}"})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in path:
            return self.answer({"files": [mode_of(file) for file in json.loads(body)["files"]]})
        if path.endswith(".git/info/lfs/objects/batch"):
            return self.answer(
                {"transfer": "basic", "objects": [self.to_upload(o) for o in json.loads(body)["objects"]]}
            )
        if "/commit/" in path:
            return self.commit([json.loads(line) for line in body.splitlines()])
        self.send_error(404, f"the stand-in does not know {path}")

    def do_GET(self) -> None:
        self.send_error(404, "there is nothing to download")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == oid
        self.server.objects[oid] = content
        self.answer({})

    def to_upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "actions": {"upload": {"href": f"{self.server.url}/objects/{asked['oid']}"}}}

    def commit(self, entries: list[dict[str, Any]]) -> None:
        message, files = "", {}
        for entry in entries:
            value = entry["value"]
            match entry["key"]:
                case "header":
                    message = value["summary"]
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.objects[value["oid"]]
        self.server.commits.append((message, files))
        oid = f"{len(self.server.commits):040}"
        self.answer(
            {"commitUrl": f"{self.server.url}/{self.server.created[0]}/commit/{oid}", "commitOid": oid}
        )

    def answer(self, said: dict[str, Any]) -> None:
        content = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def mode_of(file: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": file["path"],
        "uploadMode": "lfs" if file["size"] >= 10_000 else "regular",
        "shouldIgnore": False,
    }


@contextmanager
def local_hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()

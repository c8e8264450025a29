"""A Hugging Face hub on the loopback address, small enough to misbehave on purpose."""
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def etag_of(file, data):
    """As the hub has them: SHA-256 of large files, git's SHA-1 of the others."""
    if file.endswith((".safetensors", ".gguf", ".bin")):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def commit_of(name):
    return hashlib.sha1(name.encode()).hexdigest()


class HubServer(ThreadingHTTPServer):
    """repos: {name: {file: bytes}}. fail: a status that every answer gets. cut: files that end after half their bytes.
    gated: names that need a token. requests collects (method, path); fetched, the files whose bytes were asked for."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos, self.requests, self.fetched = {}, [], []
        self.fail, self.cut, self.gated = None, set(), set()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        hub, path = self.server, self.path.split("?")[0]
        hub.requests.append((self.command, path))
        if hub.fail:
            return self.send(hub.fail, b'{"error": "made to fail"}', with_body)
        words = path.strip("/").split("/")
        if words[:2] == ["api", "models"]:
            name = "/".join(words[2:4])
            if name not in hub.repos:
                return self.send(401, b'{"error": "Repository not found"}', with_body, {"X-Error-Code": "RepoNotFound"})
            files = hub.repos[name]
            if words[4:5] == ["tree"]:
                value = [{"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                         for file, data in files.items()]
            else:
                value = {"id": name, "modelId": name, "sha": commit_of(name), "private": False, "tags": [],
                         "downloads": 0,
                         "siblings": [{"rfilename": file, "size": len(data)} for file, data in files.items()]}
            return self.send(200, json.dumps(value).encode(), with_body)
        name, file = "/".join(words[:2]), "/".join(words[4:])
        if name in hub.gated and "Authorization" not in self.headers:
            return self.send(403, b"gated", with_body, {"X-Error-Code": "GatedRepo"})
        data = hub.repos.get(name, {}).get(file)
        if data is None or words[2] != "resolve":
            return self.send(404, b"no such file", with_body, {"X-Error-Code": "EntryNotFound"})
        if with_body:
            hub.fetched.append(file)
        extra = {"ETag": f'"{etag_of(file, data)}"', "X-Repo-Commit": commit_of(name),
                 "Accept-Ranges": "none"}
        return self.send(200, data, with_body, extra, cut=file in hub.cut)

    def send(self, status, body, with_body, headers=None, cut=False):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body[:len(body) // 2] if cut else body)
            if cut:
                self.close_connection = True

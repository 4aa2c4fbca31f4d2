"""A stand-in for the Hugging Face Hub: its answers about repositories that the tests make up."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", "v1", COMMIT)


@contextmanager
def hub(folders: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Serves folders as repositories.

    Args:
        folders: By repository; one without a folder asks for agreement to its terms.

    Yields:
        The address, and the files that were asked for, as they are.
    """
    downloaded: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_content=False)

        def do_GET(self) -> None:
            self.answer(with_content=True)

        def answer(self, *, with_content: bool) -> None:
            parts = self.path.split("?")[0].strip("/").split("/")
            api = parts[:2] == ["api", "models"]
            repo = "/".join(parts[2:4] if api else parts[:2])
            rest = parts[4:] if api else parts[2:]
            if repo not in folders:
                return self.refuse(401, "RepoNotFound")
            if folders[repo] is None:
                return self.refuse(403, "GatedRepo")
            if len(rest) > 1 and rest[1] not in REVISIONS:
                return self.refuse(404, "RevisionNotFound")
            folder = folders[repo]
            files = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
            if not api:
                path = folder.joinpath(*rest[2:])
                if with_content:
                    downloaded.append("/".join(rest[2:]))
                return self.send(path.read_bytes(), with_content)
            if rest[0] == "revision":
                siblings = [{"rfilename": str(file)} for file in files]
                return self.send_json({"id": repo, "sha": COMMIT, "siblings": siblings})
            entries = [
                {
                    "type": "file",
                    "path": str(file),
                    "size": (folder / file).stat().st_size,
                    "oid": hashlib.sha1((folder / file).read_bytes()).hexdigest(),
                }
                for file in files
            ]
            return self.send_json(entries)

        def send_json(self, content: object) -> None:
            self.send(json.dumps(content).encode(), with_content=True)

        def send(self, content: bytes, with_content: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if with_content:
                self.wfile.write(content)

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", downloaded
        server.shutdown()

"""A hub of datasets on loopback, that speaks the protocol of Hugging Face's as far as its client uses it.

A repository is a history of commits, each a table of blobs by path; large and binary files go by LFS. Unlike the real
one it keeps all in memory, and stores no chunks (Xet): its clients set `HF_HUB_DISABLE_XET`.
"""

import base64
import hashlib
import json
import sys
import time
from datetime import UTC, datetime
from urllib.parse import urlencode

from aiohttp import web

TOKEN = "hf_tokenoftests"
PAGE = 5
_LFS_SUFFIXES = (".gz", ".tfrecord", ".parquet", ".bin")


class Hub:
    """Repositories by name, bytes by their SHA-256, and the faults that requests still have to meet."""

    def __init__(self):
        self.repositories = {}
        self.contents = {}
        self.faults = []
        self.asked = []


class Repository:
    def __init__(self, access):
        self.access = access
        self.commits = {}
        self.heads = {}
        self.times = {}
        self.add("main", {})

    def add(self, branch, tree):
        sha = hashlib.sha1(f"{len(self.commits)}{sorted(tree.items())}".encode()).hexdigest()
        self.commits[sha] = tree
        for path in tree.keys() - self.commits.get(self.heads.get(branch), {}).keys():
            self.times[path] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.heads[branch] = sha
        return sha

    def commit_of(self, revision):
        sha = self.heads.get(revision, revision)
        return sha if sha in self.commits else None


def refusal(status, code="", message="", **headers):
    found = {"X-Error-Code": code, "X-Error-Message": message, **headers}
    return web.json_response({"error": message}, status=status, headers={k: v for k, v in found.items() if v})


@web.middleware
async def counted(request, handler):
    hub = request.app["hub"]
    if not request.path.startswith("/tests/"):
        hub.asked.append(f"{request.method} {request.path_qs}")
        for fault in hub.faults:
            if fault["left"] and fault["path"] in request.path and fault["method"] in ("", request.method):
                fault["left"] -= 1
                time.sleep(fault["delay_s"])
                return refusal(fault["status"], message=fault["message"], **fault["headers"])
    return await handler(request)


def found_in(request):
    """Returns the repository and commit of a request, or raises the refusal."""
    hub = request.app["hub"]
    name = f"{request.match_info['owner']}/{request.match_info['name'].removesuffix('.git')}"
    said = request.headers.get("Authorization", "")
    repository = hub.repositories.get(name)
    if said and said != f"Bearer {TOKEN}":
        raise Refused(refusal(401, message="Invalid credentials in Authorization header"))
    if repository is None or (repository.access == "private" and not said):
        # It does not tell strangers which repositories there are.
        raise Refused(refusal(404 if said else 401, "RepoNotFound", "Repository not found"))
    if repository.access == "gated":
        raise Refused(refusal(403, "GatedRepo", f"Access to dataset {name} is restricted"))
    if request.method in ("POST", "PUT") and "paths-info" not in request.path and not said:
        raise Refused(refusal(401, message="Invalid username or password."))
    sha = repository.commit_of(request.match_info.get("revision", "main"))
    if sha is None:
        raise Refused(refusal(404, "RevisionNotFound", "Invalid rev id"))
    return repository, sha


class Refused(Exception):
    pass


def handled(handler):
    async def answer(request):
        try:
            return await handler(request)
        except Refused as refused:
            return refused.args[0]

    return answer


async def create(request):
    asked = await request.json()
    name = f"{asked['organization']}/{asked['name']}"
    access = "private" if asked.get("private") or asked.get("visibility") == "private" else "public"
    request.app["hub"].repositories.setdefault(name, Repository(access))
    return web.json_response({"url": f"{request.url.origin()}/datasets/{name}", "name": name})


async def information(request):
    _, sha = found_in(request)
    name = f"{request.match_info['owner']}/{request.match_info['name']}"
    return web.json_response({"id": name, "sha": sha, "_id": name})


def entries(tree, folder, *, is_recursive):
    """Returns what is below a folder as the hub describes it: folders before what is in them."""
    found = {}
    prefix = f"{folder}/" if folder else ""
    for path, oid in sorted(tree.items()):
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if is_recursive else min(len(parts), 2)):
            below = prefix + "/".join(parts[:depth])
            found[below] = {"type": "directory", "path": below, "oid": "0" * 40, "size": 0}
        if is_recursive or len(parts) == 1:
            found[path] = described(path, oid)
    return list(found.values())


def described(path, blob):
    oid, size, is_lfs = blob
    lfs = {"lfs": {"oid": oid, "size": size, "pointerSize": 134}} if is_lfs else {}
    return {"type": "file", "path": path, "size": size, "oid": blob_id(blob), **lfs}


def blob_id(blob):
    return hashlib.sha1(str(blob).encode()).hexdigest()


async def tree_of(request):
    repository, sha = found_in(request)
    folder = request.match_info.get("path", "")
    found = entries(repository.commits[sha], folder, is_recursive=request.query["recursive"].lower() == "true")
    if folder and not found:
        raise Refused(refusal(404, "EntryNotFound", f"{folder} does not exist"))
    if request.query["expand"].lower() == "true":
        for one in found:
            last = {"id": sha, "title": "a commit", "date": repository.times.get(one["path"])}
            one |= {"lastCommit": last} if one["type"] == "file" else {}
    start = int(request.query.get("cursor", 0))
    headers = {}
    if start + PAGE < len(found):
        asked = urlencode({**request.query, "cursor": start + PAGE})
        headers["Link"] = f'<{request.url.origin()}{request.rel_url.raw_path}?{asked}>; rel="next"'
    return web.json_response(found[start : start + PAGE], headers=headers)


async def paths_of(request):
    repository, sha = found_in(request)
    tree = repository.commits[sha]
    found = []
    for path in (await request.post()).getall("paths"):
        if path in tree:
            found.append(described(path, tree[path]))
        elif any(other.startswith(f"{path}/") for other in tree):
            found.append({"type": "directory", "path": path, "oid": "0" * 40, "size": 0})
    return web.json_response(found)


async def resolve(request):
    repository, sha = found_in(request)
    blob = repository.commits[sha].get(request.match_info["path"])
    if blob is None:
        raise Refused(refusal(404, "EntryNotFound", "Entry not found"))
    oid, size, is_lfs = blob
    headers = {"X-Repo-Commit": sha, "ETag": f'"{blob_id(blob)}"'}
    if is_lfs:
        headers |= {
            "X-Linked-Etag": f'"{oid}"',
            "X-Linked-Size": str(size),
            "Location": f"http://localhost:{request.url.port}/cdn/{oid}",
        }
        return web.Response(status=302, headers=headers)
    return ranged(request, request.app["hub"].contents[oid], headers)


async def download(request):
    if "Authorization" in request.headers:
        # It is another host, that no token may reach.
        return refusal(400, message="Only one auth mechanism allowed")
    return ranged(request, request.app["hub"].contents[request.match_info["oid"]], {"ETag": '"of-the-cdn"'})


def ranged(request, content, headers):
    asked = request.http_range
    if asked.start is None:
        return web.Response(body=content, headers=headers)
    start, stop = asked.start, min(len(content), asked.stop or len(content))
    if start >= len(content):
        return web.Response(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
    return web.Response(status=206, body=content[start:stop], headers=headers)


async def preupload(request):
    found_in(request)
    files = (await request.json())["files"]
    modes = [
        {
            "path": file["path"],
            "shouldIgnore": False,
            "uploadMode": "lfs"
            if file["path"].endswith(_LFS_SUFFIXES) or b"\0" in base64.b64decode(file["sample"])
            else "regular",
        }
        for file in files
    ]
    return web.json_response({"files": modes})


async def batch(request):
    found_in(request)
    hub = request.app["hub"]
    objects = []
    for asked in (await request.json())["objects"]:
        href = f"{request.url.origin()}/lfs/{asked['oid']}"
        actions = {} if asked["oid"] in hub.contents else {"actions": {"upload": {"href": href}}}
        objects.append({"oid": asked["oid"], "size": asked["size"], **actions})
    return web.json_response({"transfer": "basic", "objects": objects})


async def upload(request):
    content = await request.read()
    oid = request.match_info["oid"]
    if hashlib.sha256(content).hexdigest() != oid:
        return refusal(400, message="the content has another hash")
    request.app["hub"].contents[oid] = content
    return web.Response()


async def commit(request):
    # Nothing is awaited between the check of the parent and the change of the head.
    lines = [json.loads(line) for line in (await request.text()).splitlines()]
    repository, sha = found_in(request)
    branch = request.match_info["revision"]
    if branch not in repository.heads:
        raise Refused(refusal(404, "RevisionNotFound", "Invalid rev id"))
    if lines[0]["value"].get("parentCommit", sha) != sha:
        raise Refused(refusal(412, message="A commit has happened since. Please refresh and try again."))
    tree = dict(repository.commits[sha])
    for line in lines[1:]:
        change_tree(request.app["hub"], tree, line["key"], line["value"])
    made = repository.add(branch, tree)
    page = f"{request.url.origin()}/datasets/{request.match_info['owner']}/{request.match_info['name']}/commit/{made}"
    return web.json_response({"commitUrl": page, "commitOid": made})


def change_tree(hub, tree, key, value):
    path = value["path"]
    if key == "file":
        content = base64.b64decode(value["content"])
        oid = hashlib.sha256(content).hexdigest()
        hub.contents[oid] = content
        tree[path] = (oid, len(content), False)
    elif key == "lfsFile":
        if value["oid"] not in hub.contents:
            raise Refused(refusal(400, message=f"{path} was not uploaded"))
        tree[path] = (value["oid"], value["size"], True)
    else:
        gone = [p for p in tree if p == path or (key == "deletedFolder" and p.startswith(f"{path.rstrip('/')}/"))]
        if not gone:
            raise Refused(refusal(404, "EntryNotFound", "A file with this name doesn't exist"))
        for one in gone:
            del tree[one]


async def set_faults(request):
    """For tests: adds faults, or makes a repository gated; answers with what was asked since the last time."""
    hub = request.app["hub"]
    asked = await request.json()
    hub.faults = [
        {"method": "", "message": "", "headers": {}, "delay_s": 0, **fault} for fault in asked.get("faults", ())
    ]
    for name in asked.get("gated", ()):
        hub.repositories[name].access = "gated"
    said, hub.asked = hub.asked, []
    return web.json_response(said)


async def validated(request):
    return web.json_response({"errors": [], "warnings": []})


def application():
    app = web.Application(middlewares=[counted], client_max_size=2**30)
    app["hub"] = Hub()
    api = "/api/datasets/{owner}/{name}"
    routes = [
        ("POST", "/api/repos/create", create),
        ("POST", "/api/validate-yaml", validated),
        ("GET", api, information),
        ("GET", api + "/revision/{revision}", information),
        ("GET", api + "/tree/{revision}", tree_of),
        ("GET", api + "/tree/{revision}/{path:.+}", tree_of),
        ("POST", api + "/paths-info/{revision}", paths_of),
        ("POST", api + "/preupload/{revision}", preupload),
        ("POST", api + "/commit/{revision}", commit),
        ("POST", "/datasets/{owner}/{name}/info/lfs/objects/batch", batch),
        ("PUT", "/lfs/{oid}", upload),
        ("*", "/cdn/{oid}", download),
        ("*", "/datasets/{owner}/{name}/resolve/{revision}/{path:.+}", resolve),
        ("POST", "/tests/faults", set_faults),
    ]
    for method, path, handler in routes:
        app.router.add_route(method, path, handled(handler))
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)

"""Files of the page: how they are sent, what they may load, what they weigh, where they are from."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from urllib.parse import urljoin

import pytest

from wisp_gateway.errors import NotFound
from wisp_gateway.inbound import routes
from wisp_gateway.page import files

MAX_COMPRESSED_BYTES = 250_000
NAMES = sorted(
    path.relative_to(files.FOLDER).as_posix() for path in files.FOLDER.rglob("*") if path.is_file()
)
SENT = [name for name in NAMES if not name.endswith(".txt") and name != "vendor/vendor.json"]
OWN = [name for name in SENT if not name.startswith("vendor/")]
VENDORED = json.loads((files.FOLDER / "vendor/vendor.json").read_text())
SCRIPTS = [name for name in NAMES if name.endswith(".js")]
# Names of formats, the gateway's own address in an example, never fetched.
NOT_FETCHED = re.compile(r"http://www\.w3\.org/|https?://(127\.0\.0\.1|localhost|HOST)")

STATIC_IMPORT = re.compile(r"\bfrom\s*[\"'](\.[^\"']+)[\"']")
IMPORT = re.compile(r"(?:from|import)\s*\(?\s*[\"'](\.[^\"']+)[\"']")


def text_of(name: str) -> str:
    return (files.FOLDER / name).read_text()


def test_the_page_is_at_the_root_and_needs_no_key(world):
    world.start(api_keys=write(world.tmp_path / "keys", "app:secret\n"))
    answer = world.http.get(f"{world.url}/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text == text_of("index.html")
    assert world.http.get(f"{world.url}/v1/models").status_code == 401  # what it shows does


def write(path, text: str):
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_every_file_comes_whole_compressed_with_its_type_and_a_strict_policy(world):
    world.start()
    for name in NAMES:
        answer = world.http.get(f"{world.url}/page/{name}")
        assert (answer.status_code, answer.content) == (200, (files.FOLDER / name).read_bytes()), name
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["content-type"].split(";")[0] != "application/octet-stream"
        assert "content-security-policy" in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_policy_allows_nothing_inline_nothing_from_elsewhere_and_no_frame():
    rules = dict(rule.split(" ", 1) for rule in files.CONTENT_SECURITY_POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["img-src"] == "'self' data:"
    assert "unsafe" not in files.CONTENT_SECURITY_POLICY


def test_a_browser_that_has_the_file_gets_304_without_a_body(world):
    world.start()
    first = world.http.get(f"{world.url}/page/style.css")
    again = world.http.get(f"{world.url}/page/style.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert "content-length" not in again.headers
    changed = world.http.get(f"{world.url}/page/style.css", headers={"if-none-match": '"other"'})
    assert changed.status_code == 200


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip, deflate, br", True),
        ("*", True),
        ("gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, identity", False),
        ("br", False),
        ("", False),
    ],
)
def test_a_client_is_sent_gzip_only_where_it_accepts_it(accepted, is_compressed):
    file = files.find("app.js")
    status, body, headers = file.answer(accepted, "")
    assert ((b"content-encoding", b"gzip") in headers) == is_compressed
    assert (gzip.decompress(body) if is_compressed else body).decode() == text_of("app.js")
    assert status == 200


@pytest.mark.parametrize("tags", ['"{}"', 'W/"{}"', '"a", "{}"', "*"])
def test_tags_are_compared_as_http_says(tags):
    file = files.find("app.js")
    assert file.answer("", tags.format(file.etag.strip('"')))[0] == 304


def test_head_has_the_head_alone(world):
    world.start()
    answer = world.http.head(f"{world.url}/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 0


@pytest.mark.parametrize("name", ["none.js", "..", "../files.py", "vendor", "files.py", ""])
def test_nothing_but_the_pages_files_is_read(name):
    with pytest.raises(NotFound, match="no file"):
        files.find(name)


@pytest.mark.parametrize("path", ["/", "/page/app.js"])
def test_the_port_of_the_metrics_has_no_page(path):
    assert routes.find("GET", path).action == "page"
    with pytest.raises(NotFound):
        routes.find("GET", path, is_metrics_port=True)


def test_all_that_a_browser_loads_stays_small():
    sizes = {name: len(files.find(name).compressed) for name in SENT}
    assert sum(sizes.values()) <= MAX_COMPRESSED_BYTES, sizes


def test_vendored_libraries_are_the_files_that_were_published():
    for entry in VENDORED:
        data = (files.FOLDER / "vendor" / entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], entry["file"]
        assert entry["version"] in entry["source"]
        assert entry["licence"]
        for licence in entry["licenceFiles"]:
            assert (files.FOLDER / "vendor" / licence).stat().st_size > 500
    libraries = {name for name in SENT if name.startswith("vendor/")}
    assert libraries == {f"vendor/{entry['file']}" for entry in VENDORED}


@pytest.mark.parametrize("name", OWN)
def test_no_file_of_ours_names_another_site(name):
    assert re.findall(r"(?:https?:)?//[\w-]+\.[^\s\"'`]+", NOT_FETCHED.sub("", text_of(name))) == []


@pytest.mark.parametrize("name", SENT)
def test_no_file_loads_from_elsewhere_or_runs_text_as_code(name):
    text = text_of(name)
    assert re.findall(r"(?:\bimport\s*\(?|\bfrom|\bfetch\(|src=)\s*[\"'`](?:https?:)?//", text) == []
    assert re.findall(r"url\(\s*[\"']?(?:https?:)?//|@import", text) == []
    if name not in ("vendor/dompurify.js", "vendor/marked.js"):
        assert re.findall(r"\beval\s*\(|\bnew Function\b", text) == []


def test_the_page_has_no_inline_script_or_style():
    index = text_of("index.html")
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", index) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", index) == []


def test_every_import_and_link_leads_to_a_file_of_the_page():
    index = text_of("index.html")
    links = [
        ("index.html", link.removeprefix("page/")) for link in re.findall(r'(?:href|src)="([^"]+)"', index)
    ]
    imports = [
        (name, urljoin(name, target))
        for name in SCRIPTS
        if not name.startswith("vendor/")
        for target in IMPORT.findall(text_of(name))
    ]
    assert len(imports) > 10
    assert [(name, target) for name, target in links + imports if target not in NAMES] == []


def test_the_first_view_waits_for_no_chain_of_imports():
    needed, queue = set[str](), ["app.js", "views/models.js"]
    while queue:
        name = queue.pop()
        if name not in needed:
            needed.add(name)
            queue += [urljoin(name, target) for target in re.findall(STATIC_IMPORT, text_of(name))]
    preloaded = re.findall(r'rel="modulepreload" href="page/([^"]+)"', text_of("index.html"))
    assert sorted([*preloaded, "app.js"]) == sorted(needed)

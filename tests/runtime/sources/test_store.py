"""The cache of downloads: complete or not at all, fetched once, gone on with, checked, and mended."""

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_source import FILES, RANGE, WEIGHTS, Fake, content

from wisp_runtime.errors import (
    AccessDenied,
    CacheUnusable,
    DiskFull,
    ModelNotFound,
    SourceUnreachable,
    WeightsUnreadable,
)
from wisp_runtime.sources import disk, transfer
from wisp_runtime.sources.listing import RemoteFile, is_needed
from wisp_runtime.sources.manifest import MANIFEST_FILE, read_manifest
from wisp_runtime.sources.store import obtain, repair


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(transfer, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


def flip(path, at=5):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_model_is_fetched_once_and_stands_alone_in_its_folder(tmp_path):
    source, moved = Fake(), []
    folder = obtain(source, tmp_path, lambda *progress: moved.append(progress))
    assert content(folder) == FILES
    assert folder == tmp_path / "weights" / "hf--org--name" / "r1"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["r1", "r1.lock", "refs"]
    assert moved[0] == (0, len(WEIGHTS) + 2)
    assert moved[-1] == (len(WEIGHTS) + 2, len(WEIGHTS) + 2)
    assert moved == sorted(moved)
    source.read_ranges.clear()
    assert obtain(source, tmp_path) == folder
    assert source.read_ranges == []


def test_the_manifest_has_every_file_with_its_sum(tmp_path):
    source = Fake()
    source.digests = dict.fromkeys(FILES, "")  # a source that promises nothing
    manifest = read_manifest(obtain(source, tmp_path))
    assert (manifest.uri, manifest.revision) == (source.uri, "r1")
    assert {file.name: file.digest for file in manifest.files} == {
        name: f"sha256:{hashlib.sha256(data).hexdigest()}" for name, data in FILES.items()
    }


def test_a_download_that_broke_off_goes_on_from_its_ranges(tmp_path):
    source = Fake()

    def refuse_the_end(_, start, __):
        if start >= 6 * RANGE:
            raise AccessDenied("the token expired.")

    source.before_read = refuse_the_end
    with pytest.raises(AccessDenied):
        obtain(source, tmp_path)
    assert not (tmp_path / "weights/hf--org--name/r1").exists()
    kept = source.fetched() - sum(b - a for _, a, b in source.read_ranges if a >= 6 * RANGE)
    source.read_ranges.clear()
    source.before_read = lambda *_: None
    moved = []
    assert content(obtain(source, tmp_path, lambda *progress: moved.append(progress))) == FILES
    assert kept > 0
    assert source.fetched() <= len(WEIGHTS) - RANGE  # at least one range had been kept
    assert moved[0][0] >= len(WEIGHTS) + 2 - source.fetched() - 2


def test_a_range_that_breaks_off_resumes_within_itself(tmp_path):
    source, broken = Fake(), []

    def break_once(_, start, __):
        if start % RANGE == 0 and start not in broken:
            broken.append(start)
            raise SourceUnreachable("reset by peer.")

    source.before_read = break_once
    assert content(obtain(source, tmp_path)) == FILES
    assert len(broken) == 11


def test_a_source_that_ends_early_is_asked_for_the_rest(tmp_path, monkeypatch):
    source, complete = Fake(), Fake.read

    def half(self, file, start, stop):
        return complete(self, file, start, start + max(1, (stop - start) // 2))

    monkeypatch.setattr(Fake, "read", half)
    assert content(obtain(source, tmp_path)) == FILES


def test_a_source_that_never_answers_is_given_up_with_its_own_words(tmp_path):
    source = Fake()

    def refuse(*_):
        raise SourceUnreachable("reset by peer.")

    source.before_read = refuse
    with pytest.raises(SourceUnreachable, match="reset by peer"):
        obtain(source, tmp_path)


def test_bytes_that_differ_from_their_digest_are_never_published_and_fetched_again(tmp_path):
    source = Fake()
    source.files["model.safetensors"] = bytes(len(WEIGHTS))
    with pytest.raises(WeightsUnreadable, match="hf://org/name arrived with other digests"):
        obtain(source, tmp_path)
    source.files["model.safetensors"] = WEIGHTS
    source.read_ranges.clear()
    assert content(obtain(source, tmp_path)) == FILES
    assert source.fetched("config.json") == 0  # what was right is kept


@pytest.mark.parametrize(
    ("digests", "wrong"),
    [
        ({"a": "md5", "b": "md5"}, []),
        ({"a": "md5", "b": "bad md5"}, ["b"]),
        # A bucket with managed keys: its tags look like MD5 sums and are none.
        ({"a": "bad md5", "b": "bad md5"}, []),
        ({"a": "", "b": "bad md5"}, []),
        ({"a": "git", "b": "sha256"}, []),
        ({"a": "bad git", "b": "bad sha256"}, ["a", "b"]),
    ],
)
def test_each_kind_of_digest_counts_as_far_as_it_can_be_trusted(tmp_path, digests, wrong):
    from wisp_runtime.sources.verify import verify

    good = {
        "md5": hashlib.md5(b"data").hexdigest(),
        "sha256": hashlib.sha256(b"data").hexdigest(),
        "git": hashlib.sha1(b"blob 4\0data").hexdigest(),
    }
    files = []
    for name, digest in digests.items():
        (tmp_path / name).write_bytes(b"data")
        kind = digest.removeprefix("bad ")
        value = "0" * 32 if digest.startswith("bad") else good.get(kind, "")
        files.append(RemoteFile(name, 4, f"{kind}:{value}" if kind else ""))
    assert verify(tmp_path, files, lambda _: None)[1] == wrong


@pytest.mark.parametrize("mark", ["  ", " *", "  ./"])
def test_the_models_own_list_of_sums_is_held_against_it(tmp_path, mark):
    listed = f"{hashlib.sha256(WEIGHTS).hexdigest()}{mark}model.safetensors\n"
    source = Fake(FILES | {"SHA256SUMS": listed.encode()})
    source.digests = dict.fromkeys(source.files, "")
    source.files["model.safetensors"] = bytes(len(WEIGHTS))
    with pytest.raises(WeightsUnreadable, match=r"model\.safetensors"):
        obtain(source, tmp_path)
    source.files["model.safetensors"] = WEIGHTS
    assert obtain(source, tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: os.truncate(folder / "model.safetensors", 9), "has 9 bytes instead of 10007"),
        (lambda folder: (folder / MANIFEST_FILE).write_text("{"), "manifest.json cannot be read"),
        (lambda folder: (folder / MANIFEST_FILE).unlink(), "manifest.json cannot be read"),
    ],
)
@pytest.mark.parametrize("pinned", ["r1", None])
def test_a_damaged_copy_is_reported_with_its_remedy_and_mended_by_repair(tmp_path, damage, words, pinned):
    folder = obtain(Fake(), tmp_path)
    damage(folder)
    source = Fake(pinned=pinned)
    with pytest.raises(WeightsUnreadable, match=words) as failure:
        obtain(source, tmp_path)
    assert "wisp-runtime pull --repair" in failure.value.message
    assert f"--cache-dir {tmp_path}" in failure.value.message
    assert content(repair(source, tmp_path)) == FILES
    assert source.fetched("config.json") == 0


def test_repair_finds_the_flipped_bit_that_sizes_hide(tmp_path):
    source = Fake()
    source.digests = dict.fromkeys(FILES, "")
    folder = obtain(source, tmp_path)
    flip(folder / "model.safetensors")
    assert obtain(source, tmp_path) == folder  # sizes agree
    assert content(repair(source, tmp_path)) == FILES


def test_repair_of_a_sound_copy_fetches_nothing(tmp_path):
    source = Fake()
    obtain(source, tmp_path)
    source.read_ranges.clear()
    repair(source, tmp_path)
    assert source.read_ranges == []


def test_a_new_revision_gets_its_own_folder_and_the_old_one_stays(tmp_path):
    old = obtain(Fake(), tmp_path)
    new = obtain(Fake(FILES | {"config.json": b"{ }"}, revision="r2"), tmp_path)
    assert (content(old)["config.json"], content(new)["config.json"]) == (b"{}", b"{ }")


@pytest.mark.parametrize("pinned", [None, "r1"])
def test_a_source_that_is_away_does_not_keep_a_copy_from_being_used(tmp_path, pinned, caplog):
    folder = obtain(Fake(), tmp_path)
    source = Fake(pinned=pinned)
    source.is_away = True
    assert obtain(source, tmp_path) == folder
    assert source.asked == (0 if pinned else 1)  # a pinned revision needs no question
    assert ("which may be old: nobody answers" in caplog.text) == (pinned is None)


def test_a_source_that_is_away_and_no_copy_is_the_sources_own_error(tmp_path):
    source = Fake()
    source.is_away = True
    with pytest.raises(SourceUnreachable, match="nobody answers"):
        obtain(source, tmp_path)


def test_a_source_that_says_no_is_not_answered_with_a_copy(tmp_path):
    obtain(Fake(), tmp_path)
    source = Fake()
    source.listing = lambda _: (_ for _ in ()).throw(AccessDenied("not for you."))
    with pytest.raises(AccessDenied):
        obtain(source, tmp_path)


def test_a_disk_too_small_is_reported_before_the_first_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=5000, total=10_000))
    source = Fake()
    with pytest.raises(DiskFull, match=r"hf://org/name needs 64\.0 MiB in .* which has 4\.9 KiB free"):
        obtain(source, tmp_path)
    assert source.read_ranges == []


def test_a_disk_that_fills_up_on_the_way_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(DiskFull):
        obtain(Fake(), tmp_path)


def test_a_cache_that_cannot_be_written_names_the_user_and_the_path(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(CacheUnusable, match=rf"user {os.getuid()}.*{tmp_path}/cache"):
        obtain(Fake(), tmp_path / "cache")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.safetensors": b"x"}, "has no config.json at its top"),
        ({"config.json": b"{}"}, r"has no \*.safetensors"),
        ({}, r"no config.json and no \*.safetensors"),
    ],
)
def test_what_is_no_model_is_not_downloaded(tmp_path, files, words):
    source = Fake()
    source.files, source.digests = files, dict.fromkeys(files, "")
    with pytest.raises(ModelNotFound, match=words):
        obtain(source, tmp_path)
    assert source.read_ranges == []


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("config.json", True),
        ("model-00001-of-00002.safetensors", True),
        ("SHA256SUMS", True),
        ("pytorch_model.bin", False),
        ("original/consolidated.00.safetensors", False),
        ("consolidated.safetensors", False),  # the same weights a second time
        ("../config.json", False),
    ],
)
def test_only_what_a_model_runs_with_is_fetched(name, needed):
    assert is_needed(name) == needed


def test_a_copy_on_a_read_only_disk_is_used(tmp_path, monkeypatch, caplog):
    folder = obtain(Fake(), tmp_path)
    (folder.parent / "refs" / "main").unlink()
    refuse = lambda *_, **__: (_ for _ in ()).throw(OSError(30, "Read-only file system"))  # noqa: E731
    monkeypatch.setattr(Path, "write_text", refuse)
    assert obtain(Fake(), tmp_path) == folder
    assert "Read-only file system" in caplog.text

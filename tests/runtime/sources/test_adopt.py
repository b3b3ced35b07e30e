"""Copies of other namespaces on one disk: taken where they are what the source announced."""

import logging
from types import SimpleNamespace

import pytest
from fake_source import FILES, RANGE, WEIGHTS, Fake, content

from wisp_runtime.errors import AccessDenied, DiskFull
from wisp_runtime.sources import disk, transfer
from wisp_runtime.sources.store import obtain, repair

WEIGHTS_FILE = "model.safetensors"
EVIL = bytes(len(WEIGHTS))


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    monkeypatch.setattr(transfer, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


def cache_of(root, namespace):
    return root / "namespaces" / namespace if namespace else root


@pytest.mark.parametrize("first", ["a", ""])  # another namespace's, or one of an earlier version
def test_a_copy_of_another_namespace_is_verified_and_linked(tmp_path, first):
    copy = obtain(Fake(), cache_of(tmp_path, first))
    source, moved = Fake(), []
    folder = obtain(source, cache_of(tmp_path, "b"), lambda *progress: moved.append(progress))
    assert folder != copy
    assert content(folder) == FILES
    assert source.fetched() == 1  # the byte that proves that this namespace may read it
    assert (folder / WEIGHTS_FILE).samefile(copy / WEIGHTS_FILE)
    assert moved[-1] == (len(WEIGHTS) + 2, len(WEIGHTS) + 2)


def test_bytes_that_another_namespace_changed_are_not_used(tmp_path, caplog):
    """A tenant's copy of a pinned commit, replaced by other weights of the same size."""
    copy = obtain(Fake(), cache_of(tmp_path, "a"))
    (copy / WEIGHTS_FILE).write_bytes(EVIL)
    with caplog.at_level(logging.WARNING):
        folder = obtain(Fake(), cache_of(tmp_path, "b"))
    assert content(folder) == FILES
    assert (copy / WEIGHTS_FILE).read_bytes() == EVIL
    assert "model.safetensors, which differ from their source" in caplog.text


def test_a_pinned_commit_is_asked_for_by_each_namespace(tmp_path):
    obtain(Fake(pinned="r1"), cache_of(tmp_path, "a"))
    source = Fake(pinned="r1")
    obtain(source, cache_of(tmp_path, "b"))
    assert source.asked == 1


def test_a_gated_model_needs_its_licence_in_every_namespace(tmp_path):
    obtain(Fake(), cache_of(tmp_path, "a"))
    gated = Fake()

    def refuse(name, _start, _stop):
        if name == WEIGHTS_FILE:
            raise AccessDenied("accept its terms first.")

    gated.before_read = refuse
    with pytest.raises(AccessDenied):
        obtain(gated, cache_of(tmp_path, "b"))
    assert not list(cache_of(tmp_path, "b").rglob(WEIGHTS_FILE))


def test_a_source_without_sha256_sums_is_fetched_by_each_namespace(tmp_path):
    digests = dict.fromkeys(FILES, "")
    for namespace in "ab":
        source = Fake()
        source.digests = digests
        folder = obtain(source, cache_of(tmp_path, namespace))
        assert source.fetched() == len(WEIGHTS)
    assert content(folder) == FILES


def test_a_repair_of_one_namespace_leaves_the_others_copy_alone(tmp_path):
    copy = obtain(Fake(), cache_of(tmp_path, "a"))
    folder = obtain(Fake(), cache_of(tmp_path, "b"))
    (folder / WEIGHTS_FILE).unlink()
    (folder / WEIGHTS_FILE).write_bytes(EVIL)
    assert content(repair(Fake(pinned="r1"), cache_of(tmp_path, "b"))) == FILES
    assert content(copy) == FILES


@pytest.mark.parametrize("planted", ["link", "folder", "fifo", "short"])
def test_what_is_planted_in_place_of_a_copy_is_passed_over(tmp_path, planted):
    import os

    copy = obtain(Fake(), cache_of(tmp_path, "a"))
    path = copy / WEIGHTS_FILE
    path.unlink()
    if planted == "link":
        (tmp_path / "secret").write_bytes(EVIL)
        path.symlink_to(tmp_path / "secret")
    elif planted == "folder":
        path.mkdir()
    elif planted == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(b"x")
    assert content(obtain(Fake(), cache_of(tmp_path, "b"))) == FILES


@pytest.mark.parametrize(("free_share", "fits"), [(0.11, True), (0.099, False)])
def test_a_download_leaves_a_node_the_space_below_which_pods_are_evicted(
    tmp_path, monkeypatch, free_share, fits
):
    total = 1 << 40
    usage = SimpleNamespace(total=total, used=0, free=int(total * free_share))
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage)
    assert content(obtain(Fake(), tmp_path / "own")) == FILES  # a disk of its own may be filled
    if fits:
        assert content(obtain(Fake(revision="r2"), cache_of(tmp_path, "a"))) == FILES
        return
    with pytest.raises(DiskFull, match="beside the 10% of the disk that are left to the node"):
        obtain(Fake(revision="r2"), cache_of(tmp_path, "a"))

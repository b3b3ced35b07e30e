"""Pictures of docs/page.md: each view, and a wake as an animation. Taken on demand alone."""

from __future__ import annotations

import io
import itertools
import time

import pytest
from chat import Chat
from PIL import Image
from playwright.sync_api import expect

DESKTOP = {"viewport": {"width": 1100, "height": 1000}}
PHONE = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
QUESTION = "What is the capital of France, and what is it known for?"
FRAME_S = 0.2
MAX_FRAMES = 80
MAX_BYTES = 600_000
COLOURS = 256


@pytest.fixture
def folder(request):
    folder = request.config.getoption("--screenshots")
    if folder is None:
        pytest.skip("pictures are taken with --screenshots FOLDER")
    folder.mkdir(exist_ok=True)
    return folder


def picture(page):
    return Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")


def keep(folder, name, page):
    picture(page).quantize(COLOURS, dither=Image.Dither.NONE).save(folder / f"page-{name}.png", optimize=True)


def test_the_wake_as_an_animation(open_page, folder, wisp):
    page = open_page("#/chat", viewport={"width": 860, "height": 480}).page
    chat = Chat(page, "smollm2")
    chat.set(Temperature="0")
    chat.message.fill(QUESTION)
    frames, times = [picture(page)], [time.monotonic()]
    chat.message.press("Enter")
    end = page.get_by_role("button", name="Regenerate")
    while not end.is_visible() and len(frames) < MAX_FRAMES:
        frames.append(picture(page))
        times.append(time.monotonic())
        page.wait_for_timeout(1000 * FRAME_S)
    chat.ended(chat.answers.last)
    frames.append(picture(page))
    times.append(time.monotonic())
    lasted_ms = [int(1000 * (after - before)) for before, after in itertools.pairwise(times)]
    path = folder / "page-wake.webp"
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        duration=[*lasted_ms, 3000],
        loop=0,
        quality=60,
        method=6,
    )
    keep(folder, "chat", page)


def test_every_view_as_a_picture(open_page, folder, scripts):
    scripts["broken"].fail(
        "DoesNotFit", "needs 24 GiB for a context of 32768 tokens, this machine has 6 GiB free"
    )
    scripts["second"].answer("", "A paragraph of words that comes slowly. " * 12, pace_s=0.02)
    page = open_page("#/chat", **DESKTOP).page
    chat = Chat(page, "second")
    for n in range(6):
        chat.ask(f"Write paragraph {n}.")
    with scripts["sleeper"].held_wake():
        page.evaluate("location.hash = '#/models'")
        page.get_by_role("button", name="Wake broken").click()
        page.get_by_role("button", name="Wake sleeper").click()
        expect(page.get_by_text("Loading weights 62%")).to_be_visible()
        expect(page.get_by_text("Does not fit")).to_be_visible()
        page.evaluate("scrollTo(0, 0)")
        keep(folder, "models", page)
        dark = open_page("#/models", color_scheme="dark", **DESKTOP).page
        expect(dark.get_by_text("Loading weights 62%")).to_be_visible()
        keep(folder, "models-dark", dark)
    for view in ("live", "wakes", "requests"):
        page.evaluate("view => { location.hash = `#/${view}` }", view)
        expect(page.get_by_role("heading", name=view.capitalize(), exact=True)).to_be_visible()
        page.wait_for_timeout(1000)  # fonts and charts
        keep(folder, view, page)
    phone = open_page("#/models", **PHONE).page
    expect(phone.get_by_role("article").first).to_be_visible()
    keep(folder, "phone", phone)
    assert sum(path.stat().st_size for path in folder.glob("page-*")) <= MAX_BYTES

"""Probes of a server that is attacked: the longest wait for its health endpoint, the most memory it held."""

import threading
import time
from contextlib import contextmanager

import httpx
from machine_pace import pace

MIB = 1 << 20


@contextmanager
def slowest_livez(url):
    """Probe ``/livez`` meanwhile; the list's entry is the longest gap, scaled to an idle machine."""
    slowest, done = [0.0], threading.Event()

    def probe():
        last_s = time.monotonic()
        with httpx.Client(base_url=url, timeout=60) as client:
            while not done.is_set():
                assert client.get("/livez").status_code == 200
                now_s = time.monotonic()
                slowest[0], last_s = max(slowest[0], now_s - last_s), now_s
                time.sleep(0.01)

    thread = threading.Thread(target=probe)
    with pace() as machine:
        thread.start()
        try:
            yield slowest
        finally:
            done.set()
            thread.join()
    slowest[0] /= machine.stretch


def peak_bytes():
    """Return the most memory this process has held: the server runs in it."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

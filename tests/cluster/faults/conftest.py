"""One release, one set of weights and one record for every fault."""

import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from fault_table import Scene, World, run

SIDE_BY_SIDE = 2


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.timeout(900))  # the first waits for all that run side by side


@pytest.fixture(scope="session")
def world(release, tmp_path_factory):
    world = World(release, tmp_path_factory.mktemp("faults"))
    yield world
    world.end()


@pytest.fixture(scope="session")
def apart(world, record, request):
    """Outcomes to be of the selected rows that disturb nothing but their own model, by name."""
    found = [getattr(item, "callspec", None) for item in request.session.items]
    rows = [call.params["row"] for call in found if call and "row" in call.params]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        yield {
            row.name: threads.submit(run, row, Scene(str(row), world), record) for row in rows if row.is_apart
        }


@pytest.fixture
def under_load(world, record, apart):
    """Run one row of a table, or take its outcome."""

    def run_row(fault, **place):
        if fault.is_apart:
            apart[fault.name].result()
        else:
            wait(apart.values())
            run(fault, Scene(str(fault), world, **place), record)

    return run_row


@pytest.fixture
def scene(world, request):
    """A model of the test's own, without a load."""
    scene = Scene(f"f-{zlib.crc32(request.node.name.encode())}", world)
    yield scene
    scene.forget(scene.name)

import pytest

from wisp_plan.memory.batch_buckets import bucket_for, buckets


@pytest.mark.parametrize(
    ("most", "expect"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),  # the largest is what may run, whatever it is
        (16, (1, 2, 4, 8, 16)),
        (100, (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)),
        (256, (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)),
        (400, (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 400)),
    ],
)
def test_the_sizes_reach_to_the_most_that_run(most, expect):
    assert buckets(most) == expect


@pytest.mark.parametrize("most", [1, 7, 8, 200, 513])
def test_a_step_takes_the_smallest_size_that_holds_it(most):
    sizes = buckets(most)
    for rows in range(1, most + 1):
        size = bucket_for(rows, sizes)
        assert rows <= size
        assert not [smaller for smaller in sizes if rows <= smaller < size]

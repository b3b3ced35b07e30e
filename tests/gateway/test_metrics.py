"""Prometheus text: label escaping, cumulative buckets."""

from __future__ import annotations

import json

from wisp_gateway.metrics import MAX_KEYS, OTHER_KEYS, UNUSED_S, Family, Histogram, Metrics
from wisp_gateway.reporting import model_metrics


def test_a_label_value_cannot_break_the_line_it_is_in():
    family = Family("wisp_x_total", "X.", "model")
    family.add(2, 'a"b\\c\nd')
    assert list(family.lines())[-1] == 'wisp_x_total{model="a\\"b\\\\c\\nd"} 2'


def test_buckets_are_cumulative():
    histogram = Histogram("wisp_x_seconds", "X.", "model")
    for seconds in (0.004, 0.2, 1000):
        histogram.observe(seconds, "m")
    lines = list(histogram.lines())
    assert 'wisp_x_seconds_bucket{model="m",le="0.005"} 1' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="0.25"} 2' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="300"} 2' in lines
    assert 'wisp_x_seconds_bucket{model="m",le="+Inf"} 3' in lines
    assert 'wisp_x_seconds_count{model="m"} 3' in lines


def test_models_that_are_gone_leave_no_series():
    """A tenant that makes and deletes models would fill the memory and every scrape."""
    metrics = Metrics()
    for model in ("a/stays", "a/gone", ""):
        metrics.requests.add(1, model, "200")
        metrics.hold.observe(1.0, model)
        metrics.tokens.set(1, model)
    metrics.keep_only({"a/stays"})
    text = metrics.render().decode()
    assert "a/gone" not in text
    assert text.count('model="a/stays"') > text.count('model=""') - 1 > 0


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def test_keys_beyond_the_bound_share_one_label_until_one_was_not_used_for_an_hour():
    clock = Clock()
    metrics = Metrics(clock)
    names = [metrics.key_label(f"k{number}") for number in range(MAX_KEYS + 50)]
    assert len(set(names)) == MAX_KEYS + 1
    assert names[-1] == OTHER_KEYS
    for name in ("k0", "k1"):
        metrics.key_requests.add(1, "m", name, "200")
        metrics.refusals.add(1, "m", name, "c", "t")
    clock.now_s += UNUSED_S - 1
    assert metrics.key_label("k0") == "k0"
    assert metrics.key_label("new") == OTHER_KEYS
    clock.now_s += 1
    assert metrics.key_label("new") == "new"  # in the place of k1, whose series ends
    text = metrics.render().decode()
    assert 'key="k0"' in text
    assert 'key="k1"' not in text
    assert metrics.key_label("k1") == "k1"  # k2 was not used either


REPORT = {
    "promptTokens": 31,
    "cachedTokens": 16,
    "completionTokens": 12,
    "finish": "stop",
    "firstTokenSeconds": 0.2,
    "perTokenSeconds": 0.004,
}


def test_an_answer_is_counted_by_model_and_by_key(world):
    (world.tmp_path / "keys").write_text("alice:sk-a\nsk-nameless\n")
    report = world.answer(200, b"{}", f"x-wisp-usage: {json.dumps(REPORT)}")
    world.model("m", world.pod(world.does.write(report)))
    world.start(api_keys=world.tmp_path / "keys")
    for key in ("sk-a", "sk-a", "sk-nameless"):
        assert world.post(headers={"authorization": f"Bearer {key}"}).status_code == 200
    requests = 'wisp_gateway_key_requests_total{model="default/m",key="%s",code="200"}'
    tokens = 'wisp_gateway_key_tokens_total{model="default/m",key="alice",kind="%s"}'
    world.until(lambda: world.metric(requests % "") == 1)
    assert world.metric(requests % "alice") == 2
    assert [world.metric(tokens % kind) for kind in ("prompt", "cached", "completion")] == [62, 32, 24]
    label = '{model="default/m"}'
    assert world.metric(f"wisp_gateway_time_to_first_token_seconds_count{label}") == 3
    assert world.metric(f"wisp_gateway_time_to_first_token_seconds_sum{label}") >= 0.6
    assert world.metric(f"wisp_gateway_time_per_output_token_seconds_sum{label}") == 0.012
    assert world.metric(f"wisp_gateway_request_seconds_count{label}") == 3


def test_refusals_are_counted_by_reason_and_models_by_state(world):
    (world.tmp_path / "keys").write_text("alice:sk-a\n")
    world.model("m", world.pod())
    world.start(api_keys=world.tmp_path / "keys")
    assert world.post().status_code == 401
    unknown = {"model": "nobody", "messages": []}
    assert world.post(json=unknown, headers={"authorization": "Bearer sk-a"}).status_code == 404
    refusals = 'wisp_gateway_refusals_total{model="",key="%s",reason="%s",type="invalid_request_error"}'
    assert world.metric(refusals % ("", "invalid_api_key")) == 1
    assert world.metric(refusals % ("alice", "model_not_found")) == 1
    assert world.metric('wisp_gateway_model_state{model="default/m",state="Ready"}') == 1
    assert world.metric('wisp_gateway_pods_ready{model="default/m"}') == 1
    assert world.metric("wisp_gateway_has_snapshot") == 1
    assert world.metric('wisp_gateway_retries_total{model="default/m"}') == 0


def test_the_phases_of_a_wake_are_counted_once_it_is_ready():
    metrics = Metrics()
    phases = [{"name": "weights", "seconds": 2.5}, {"name": "of-its-own", "seconds": 1}]
    phases.append({"name": "answer", "seconds": 4})  # is known to some wakes when they are counted
    for outcome in ("ready", "failed"):
        model_metrics.count_wake(metrics, {"key": "a/m", "outcome": outcome, "phases": phases})
    assert metrics.wake_phases.value("a/m", "weights") == 2.5
    assert metrics.wake_phases.value("a/m", "other") == 1  # a pod's words are no labels
    assert [metrics.wakes_ended.value("a/m", outcome) for outcome in ("ready", "failed")] == [1, 1]


def test_a_models_series_are_zero_before_their_first_event(world):
    world.model("m")
    world.start()
    label = 'model="default/m"'
    zeros = [
        f'wakes_ended_total{{{label},outcome="{outcome}"}}' for outcome in ("ready", "failed", "abandoned")
    ]
    zeros += [f'wake_phase_seconds_total{{{label},phase="{phase}"}}' for phase in ("weights", "other")]
    zeros += [f"{name}_total{{{label}}}" for name in ("wakes", "retries", "tokens", "sent_bytes")]
    zeros += [
        f"{name}_seconds_count{{{label}}}"
        for name in ("time_per_output_token", "time_to_first_token", "time_to_first_byte", "request")
    ]
    lines = world.http.get(f"{world.url}/metrics").text.splitlines()
    assert [name for name in zeros if f"wisp_gateway_{name} 0" not in lines] == []

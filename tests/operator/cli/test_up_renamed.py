"""``wisp up`` while the served name of a model changes under requests, and its new pod takes its time."""

import threading

from running_up import manifest, up


def called(served, ready_after_s):
    model = {"uri": "hf://fake/tiny", "servedName": served}
    return manifest(fake={"ready_after_s": ready_after_s}, model=model)


def test_every_name_answers_while_pods_of_the_old_and_the_new_one_run(tmp_path):
    answers, ended = {name: [] for name in ("alpha", "tiny", "default/tiny")}, threading.Event()

    def ask_on(name):
        while not ended.wait(0.05):
            answers[name].append(running.ask(name)[0])

    with up(tmp_path, called("alpha", 0)) as running:
        assert running.ask("alpha")[0] == 200
        clients = [threading.Thread(target=ask_on, args=(name,)) for name in answers]
        for client in clients:
            client.start()
        running.write([called("beta", 2)])
        running.until(lambda: running.ask("beta")[0] == 200)
        running.until(lambda: len(running.state()["endpoints"]) == 2)
        assert [running.ask(name)[0] for name in ("alpha", "beta", "tiny")] == [200] * 3
        running.until(lambda: running.ask("alpha")[0] == 404)  # no pod has that name any more
        ended.set()
        for client in clients:
            client.join(15)
        assert running.ask("beta")[0] == 200
    assert {*answers["tiny"], *answers["default/tiny"]} == {200}
    first_404 = answers["alpha"].index(404) if 404 in answers["alpha"] else len(answers["alpha"])
    assert set(answers["alpha"][:first_404]) == {200}
    assert set(answers["alpha"][first_404:]) <= {404}

"""hvdrun's choice of the ranks' settings."""

from __future__ import annotations

from hvd_keras.run.ranks import environment

_INTER_OP = "TF_NUM_INTEROP_THREADS"


def test_with_several_hosts_ranks_have_two_threads_between_ops() -> None:
    many = 10 * environment.num_cores()
    assert environment.defaults({}, many)[_INTER_OP] == "1"
    settings = environment.defaults({}, many, has_more_hosts=True)
    assert settings[_INTER_OP] == "2"
    assert settings["TF_NUM_INTRAOP_THREADS"] == "1"


def test_a_setting_of_the_user_stays() -> None:
    environ = {_INTER_OP: "1"}
    settings = environment.defaults(environ, 1, has_more_hosts=True)
    assert _INTER_OP not in settings

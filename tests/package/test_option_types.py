# SPDX-License-Identifier: Apache-2.0
"""A value outside an option's range is refused by every command that has the option, before anything has started."""

import pytest

from lightning_sagemaker import cli

WRONG = [
    *(
        ([command, *words, "--poll"], value)
        for command, words in (("logs", ["job"]), ("jobs", []), ("launch", ["train.py"]))
        for value in ("0", "-1", "nan", "inf", "soon")
    ),
    *((["jobs", "--limit"], value) for value in ("0", "-1", "many", "1.5")),
    *((["demo", option], "0") for option in ("--hosts", "--processes-per-host")),
    *((["supervise", option], "0") for option in ("--processes", "--attempts", "--silence", "--reconnect-timeout")),
    *((["supervise", option], "-1") for option in ("--processes", "--max-restarts", "--rejoin-timeout", "--silence")),
    *((["supervise", option], "nan") for option in ("--rejoin-timeout", "--silence", "--reconnect-timeout")),
    *((["bench", "workers", option], "0") for option in ("--samples", "--timeout")),
]


@pytest.mark.parametrize(("words", "value"), WRONG)
def test_refused(words, value, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, value])
    assert f"argument {words[-1]}: {value!r} was given. HINT: it must be " in capsys.readouterr().err


def test_the_limits_themselves_are_taken():
    parse = cli.build_parser().parse_args
    given = parse(["supervise", "--rejoin-timeout", "0", "--max-restarts", "0", "--processes", "1", "train.py"])
    assert (given.rejoin_timeout, given.max_restarts, given.processes) == (0.0, 0, 1)

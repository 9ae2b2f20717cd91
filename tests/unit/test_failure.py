# SPDX-License-Identifier: Apache-2.0
"""The file that says why a job failed."""

from lightning_sagemaker.job.failure import without_secrets, write_failure


def fail(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_the_first_failure_stays_and_its_exception_comes_first(tmp_path):
    path = tmp_path / "output" / "failure"
    write_failure(path, fail("first"), 3, {})
    write_failure(path, fail("second"), 0, {})
    text = path.read_text()
    assert text.startswith("ValueError: first (rank 3)\n")
    assert "test_failure.py" in text
    assert "second" not in text
    assert [one.name for one in path.parent.iterdir()] == ["failure"]


def test_an_empty_file_is_filled(tmp_path):
    (tmp_path / "failure").touch()
    write_failure(tmp_path / "failure", fail("x"), None, {})
    assert (tmp_path / "failure").read_text().startswith("ValueError: x\n")


def test_a_folder_that_cannot_be_made_is_no_second_error(tmp_path):
    (tmp_path / "file").touch()
    write_failure(tmp_path / "file" / "failure", fail("x"), 0, {})


def test_secrets_are_not_in_it(tmp_path):
    names = {"AWS_SECRET_ACCESS_KEY": "abcdef123", "HF_TOKEN": "hf_1234567", "PATH": "/usr/bin", "DB_PASSWORD": "x"}
    assert without_secrets("got abcdef123 and hf_1234567 in /usr/bin, x", names) == "got *** and *** in /usr/bin, x"

# SPDX-License-Identifier: Apache-2.0
import pytest

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.supervisor import link


@pytest.mark.parametrize("name", ["nowhere.invalid", "a" * 70])
def test_a_name_that_does_not_resolve_is_not_waited_for_as_a_host_that_starts(name, monkeypatch):
    monkeypatch.setattr(link, "_NAME", 0.0)
    with pytest.raises(LaunchError, match=rf"The coordinator at {name}:29400 has not answered for 0 s \(.+\)\. HINT: "):
        link.Link(f"{name}:29400", "token", 1, [1], lambda _: None)

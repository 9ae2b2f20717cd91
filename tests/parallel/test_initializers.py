# SPDX-License-Identifier: Apache-2.0
from importlib.metadata import version

import pytest
import torch
from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.initializers import initial_values
from tests.distributed.models import MODELS


def on_meta(make):
    with torch.device("meta"):
        return make()


def values_of(root):
    return initial_values(root, lambda tensor: tensor.is_meta)


def test_values_depend_on_the_seed_and_the_name_only():
    torch.manual_seed(4)
    root = on_meta(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    taken = values_of(root)
    first, second = (taken[id(layer.weight)]() for layer in root)
    assert not torch.equal(first, second)
    assert torch.rand(1) != first[0, 0]
    assert torch.equal(values_of(root)[id(root[1].weight)](), second)  # alone, in another order
    torch.manual_seed(5)
    assert not torch.equal(values_of(root)[id(root[1].weight)](), second)
    assert root[0].weight.is_meta


@pytest.mark.parametrize("name", ["bert-mlm", "llama", "gpt2", "plain"])
def test_buffers_are_computed_again(name):
    expected, root = MODELS[name](), on_meta(MODELS[name])
    taken = values_of(root)
    if name != "plain" and version("transformers").startswith("4."):  # its initializers leave buffers as they are
        with pytest.raises(ParallelConfigError, match="the initializer of .* does not set it. HINT: "):
            _ = [taken[id(buffer)]() for buffer in root.buffers()]
        return
    for (key, buffer), (_, value) in zip(root.named_buffers(), expected.named_buffers(), strict=True):
        assert torch.equal(taken[id(buffer)](), value), key
    assert all(bool(taken[id(parameter)]().isfinite().all()) for parameter in root.parameters())


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Forgets(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("steps", torch.arange(3), persistent=False)


def test_what_has_no_initializer_is_named():
    root = on_meta(lambda: nn.Sequential(nn.Linear(2, 2), Bare()))
    with pytest.raises(
        ParallelConfigError, match=r"^1 \(Bare\) was built on the meta device.* HINT: build the model in"
    ):
        values_of(root)


def test_what_an_initializer_forgets_is_named():
    root = on_meta(lambda: nn.Sequential(Forgets()))
    taken = values_of(root)
    assert taken[id(root[0].weight)]().isfinite().all()
    with pytest.raises(
        ParallelConfigError, match=r"^0\.steps was built .* initializer of Forgets does not set it.*HINT"
    ):
        taken[id(root[0].steps)]()
    assert root[0].steps.is_meta

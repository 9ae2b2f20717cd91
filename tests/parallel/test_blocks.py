# SPDX-License-Identifier: Apache-2.0
from collections import OrderedDict

import pytest
from torch import nn

from lightning_sagemaker.parallel.blocks import find_blocks, find_units
from lightning_sagemaker.parallel.degrees import ParallelConfigError


class Block(nn.Linear):
    """A class of its own."""


def blocks(number: int = 3) -> list[nn.Module]:
    return [Block(4, 4) for _ in range(number)]


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (nn.ModuleList(blocks()), ("0", "1", "2")),
        (nn.Sequential(*blocks()), ("0", "1", "2")),
        (nn.ModuleDict({str(number): block for number, block in enumerate(blocks())}), ("0", "1", "2")),
        (nn.ModuleDict({"0": nn.Linear(4, 4), "7": Block(4, 4), "8": Block(4, 4)}), ("7", "8")),
        (nn.Sequential(OrderedDict(start=nn.Linear(4, 4), a=Block(4, 4), b=Block(4, 4))), ("a", "b")),
    ],
)
def test_blocks_are_found_in_any_container_under_their_names(layers, names):
    model = nn.ModuleDict({"layers": layers, "head": nn.Linear(4, 2)})
    found = find_blocks(model)
    assert found.names == tuple(f"layers.{name}" for name in names)
    assert all(model.get_submodule(name) is block for name, block in zip(found.names, found.modules, strict=True))
    assert find_units(model) == list(found.modules)


def test_named_parts_are_no_list():
    """Two encoders: what is cut and gathered are the blocks of one, as if they were attributes."""
    towers = nn.ModuleDict({name: nn.Sequential(*blocks(), nn.Linear(4, 400)) for name in ("text", "image")})
    assert find_blocks(towers).names == ("text.0", "text.1", "text.2")


def test_one_block_for_all_layers_is_no_list():
    shared = Block(4, 4)
    for layers in (nn.ModuleList([shared, shared]), nn.ModuleDict({"0": shared, "1": shared})):
        with pytest.raises(ParallelConfigError, match="no list of distinct blocks"):
            find_blocks(nn.ModuleDict({"layers": layers}))
        assert find_units(nn.ModuleDict({"layers": layers})) == []

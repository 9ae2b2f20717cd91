# SPDX-License-Identifier: Apache-2.0
"""What a step returns for microbatches, merged, is what it returns for the batch: the step itself decides."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from lightning_sagemaker.parallel.microbatches import Cut
from lightning_sagemaker.strategies.merge import merge

Pair = namedtuple("Pair", "rows names")


@dataclass
class Output:
    rows: torch.Tensor
    loss: torch.Tensor
    names: list


STEPS = {
    "rows": lambda x, names: x * 2,
    "a mean": lambda x, names: x.mean(),
    "a number": lambda x, names: float(x.mean()),
    "an array": lambda x, names: x.numpy() * 2,
    "arrays in a dict": lambda x, names: {"a": (x.numpy(), {"b": x.numpy()[:, 0]}), "mean": x.numpy().mean()},
    "a dataclass": lambda x, names: Output(x, x.mean(), names),
    "a named tuple": lambda x, names: Pair(x, names),
    "a tuple": lambda x, names: (x, x.mean()),
    "a model's output": lambda x, names: SequenceClassifierOutput(loss=x.mean(), logits=x),
    "an ordered dict": lambda x, names: OrderedDict(x=x, names=names),
    "names": lambda x, names: names,
    "names in a tuple": lambda x, names: tuple(names),
    "records": lambda x, names: [{"name": name, "row": row} for name, row in zip(names, x, strict=True)],
    "rows by name": lambda x, names: dict(zip(names, x, strict=True)),
    "a set": lambda x, names: {*names},
    "a tensor of each sample": lambda x, names: [row[: 1 + int(row[0]) % 2] for row in x],
    "nothing": lambda x, names: None,
    "what is the same": lambda x, names: {"kind": "a", "flag": True, "function": len},
}


def plain(value):
    if isinstance(value, Output):
        value = vars(value)
    if isinstance(value, torch.Tensor | np.ndarray | np.generic | float):
        return np.round(np.asarray(value), 4).tolist()
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("samples", [8, 7, 3])
@pytest.mark.parametrize("step", STEPS)
def test_the_whole_is_that_of_the_batch(step, samples):
    x, names = torch.arange(2.0 * samples).view(samples, 2), [f"s{number}" for number in range(samples)]
    parts, weights, _ = Cut(2, batch_size=8)({"x": x, "names": names})
    found = merge([STEPS[step](**part) for part in parts], weights if samples % 2 else None)
    expected = STEPS[step](x, names)
    assert type(found) is type(expected)
    assert plain(found) == plain(expected)


def test_parts_that_do_not_fit_become_a_list():
    wide, narrow = torch.ones(2, 3), torch.ones(2, 4)
    assert [part.shape for part in merge([wide, narrow])] == [wide.shape, narrow.shape]
    assert [part.shape for part in merge([wide.numpy(), narrow.numpy()])] == [wide.shape, narrow.shape]
    assert merge([object, wide])[0] is object

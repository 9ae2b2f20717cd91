# SPDX-License-Identifier: Apache-2.0
"""The composite and the shim in one process, and what their safety rests on."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup

from lightning_sagemaker.collectives.composite import CompositeProcessGroup
from lightning_sagemaker.collectives.native import TRAMPOLINED, NativeBackedGroup
from lightning_sagemaker.smdistributed.dataparallel.torch.process_group import SMDDPProcessGroup

HEADERS = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d"
MINUTE = timedelta(minutes=1)


class Engine:
    """Stands for SMDDP in the composite: records what reaches it. The real one is closed and needs AWS's hosts."""

    def __init__(self):
        self.calls = []

    def allreduce(self, tensors, opts):
        self.calls.append((tensors, opts))
        return "work"


@pytest.fixture
def composite():
    return CompositeProcessGroup(dist.HashStore(), 0, 1, MINUTE, Engine())


def options(operation=dist.ReduceOp.SUM):
    opts = AllreduceOptions()
    opts.reduceOp = operation
    return opts


@pytest.mark.parametrize("group", [NativeBackedGroup, CompositeProcessGroup, SMDDPProcessGroup])
def test_every_collective_that_torch_looks_up_in_python_is_overridden(group):
    """One that is not would run with the GIL held and deadlock with gloo's thread, now and then."""
    (header,) = HEADERS.rglob("PyProcessGroup.hpp")
    text = header.read_text()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text)
    names = set(re.findall(r"WORK_OVERRIDE\(\s*ProcessGroup,\s*(\w+)", text))
    names |= set(re.findall(r"PYBIND11_OVERRIDE\(\s*c10::intrusive_ptr<Work>,\s*ProcessGroup,\s*(\w+)", text))  # 2.5
    names |= set(re.findall(r"get_override\(\s*static_cast<const ProcessGroup\*>\(this\),\s*\"(\w+)\"", text))
    names -= {"getBackendName"}
    assert {"allreduce", "broadcast", "barrier"} <= names
    assert names <= set(TRAMPOLINED)
    for name in names:
        assert getattr(group, name) is not getattr(ProcessGroup, name, None)


def test_floating_point_sums_go_to_the_engine(composite):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert composite.allreduce([torch.ones(2, dtype=dtype)], options()) == "work"
    assert composite.allreduce(torch.ones(2)) == "work"  # a bare tensor, and the sum by default
    assert len(composite.engine.calls) == 4


@pytest.mark.parametrize(
    ("tensor", "operation", "expected"),
    [
        (torch.tensor([1, 2]), dist.ReduceOp.SUM, [1, 2]),
        (torch.tensor([1.0, 2.0]), dist.ReduceOp.AVG, [1, 2]),
        (torch.tensor([3, 4]), dist.ReduceOp.AVG, [3, 4]),
        (torch.tensor([1.0, 2.0]), dist.ReduceOp.MAX, [1, 2]),
        (torch.tensor([1.0, 2.0]), dist.ReduceOp.PRODUCT, [1, 2]),
    ],
)
def test_the_rest_does_not(composite, tensor, operation, expected):
    composite.allreduce([tensor], options(operation)).wait()
    assert tensor.tolist() == expected
    assert composite.engine.calls == []


def test_a_sub_group_has_no_engine():
    group = CompositeProcessGroup(dist.HashStore(), 0, 1, MINUTE, None)
    tensor = torch.ones(2)
    group.allreduce([tensor], options()).wait()
    assert tensor.tolist() == [1, 1]


def test_names():
    assert CompositeProcessGroup(dist.HashStore(), 0, 1, MINUTE).getBackendName() == "smddp_composite"
    assert SMDDPProcessGroup(dist.HashStore(), 0, 1, MINUTE).getBackendName() == "smddp"


def test_the_shim_is_as_strict_as_it_was_made(monkeypatch):
    group = SMDDPProcessGroup(dist.HashStore(), 0, 1, MINUTE)
    with pytest.raises(RuntimeError, match=r"^SMDDP does not support: ReduceOp$"):
        group.allreduce([torch.ones(1)], options(dist.ReduceOp.AVG))
    monkeypatch.setenv("LIGHTNING_SAGEMAKER_SMDDP_STRICT", "0")
    relaxed, tensor = SMDDPProcessGroup(dist.HashStore(), 0, 1, MINUTE), torch.full((1,), 3.0)
    relaxed.allreduce([tensor], options(dist.ReduceOp.AVG)).wait()
    assert tensor.tolist() == [3.0]


def test_the_shim_refuses_every_collective_that_smddp_lacks():
    """By the methods of this torch's groups: its newer versions have others."""
    kinds = ("barrier", "broadcast", "gather", "recv", "reduce", "scatter", "send", "to_all", "toall")
    methods = {name for name in dir(ProcessGroup) if any(kind in name for kind in kinds) and not name.startswith("__")}
    taken = {"allgather", "allreduce", "barrier", "broadcast", "monitored_barrier", "reduce"}
    group = SMDDPProcessGroup(dist.HashStore(), 0, 1, MINUTE)
    for name in methods - taken:
        with pytest.raises(RuntimeError, match=r"^SMDDP does not support: "):
            getattr(group, name)()


@pytest.mark.slow
def test_many_groups_end():
    """Torch 2.5's group joins gloo's threads with the GIL held, and one of them may ask for it: within 2000 it did."""
    program = """
import faulthandler; faulthandler.dump_traceback_later(200, exit=True)
from datetime import timedelta
import torch, torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions
from lightning_sagemaker.collectives.native import NativeBackedGroup
for _ in range(3000):
    group = NativeBackedGroup(dist.HashStore(), 0, 1, timedelta(minutes=1))
    group.average([torch.ones(4)], AllreduceOptions()).wait()
    del group
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_group_that_is_there_when_python_ends_is_quiet():
    program = """
import sys
from datetime import timedelta
import torch.distributed as dist
from lightning_sagemaker.collectives.native import NativeBackedGroup
group = NativeBackedGroup(dist.HashStore(), 0, 1, timedelta(seconds=30))
sys.modules["kept"] = group  # until after the modules that its destructor names
raise ValueError("of the script")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: of the script"), done.stderr

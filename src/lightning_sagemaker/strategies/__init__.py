# SPDX-License-Identifier: Apache-2.0
"""The strategies for the Trainer and their Fabric counterparts.

One module for each: :mod:`.ddp`, :mod:`.smddp`, :mod:`.fsdp`, :mod:`.sharded` and :mod:`.model_parallel` (both ``"smp"``),
:mod:`.in_job` and :mod:`.fabric_in_job`. Their classes are composed of mixins before Lightning's class, one mixin for
each property: :mod:`.job_aware` (hosts and ranks of the job), :mod:`.backend`, :mod:`.reduction`, :mod:`.may_recover`
and others. :mod:`.factory` creates what a name selects.
"""

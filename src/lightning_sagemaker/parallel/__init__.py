# SPDX-License-Identifier: Apache-2.0
"""Model parallelism: degrees and ranks, pipeline stages of unchanged modules, and their schedules.

- a pipeline: :mod:`.trace` finds what each stage needs, :mod:`.partition` divides the blocks, :mod:`.model` is the
  partitioned module, :mod:`.engine` runs its microbatches in the order of :mod:`.schedule`, each :mod:`.stage` the user's
  code, with :mod:`.exchange` between them
- without stages: :mod:`.sharding` (FSDP2, and tensor parallelism by the :mod:`.plans`); within stages :mod:`.tensor`
- modules that are built before it is known which rank needs them: :mod:`.delayed`, :mod:`.tape`, :mod:`.initializers`
- the layout: :mod:`.degrees`, :mod:`.groups`, and the user's keys of it, :mod:`.keys`
"""

# SPDX-License-Identifier: Apache-2.0
"""Simulate the hosts of a SageMaker job: the cluster, its launchers, processes and network."""

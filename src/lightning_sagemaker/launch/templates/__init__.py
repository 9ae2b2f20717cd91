# SPDX-License-Identifier: Apache-2.0
"""CloudFormation and Docker: what a job needs around it."""

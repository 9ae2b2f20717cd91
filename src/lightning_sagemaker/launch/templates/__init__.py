# SPDX-License-Identifier: Apache-2.0
"""Templates of CloudFormation and Docker for the resources and the image of a job."""

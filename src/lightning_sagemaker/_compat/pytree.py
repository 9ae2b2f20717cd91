# SPDX-License-Identifier: Apache-2.0
"""torch's functions over nested containers, which have no public name in all versions from 2.5 on."""

from torch.utils._pytree import arg_tree_leaves, tree_flatten, tree_leaves, tree_map, tree_map_only

__all__ = ["arg_tree_leaves", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only"]

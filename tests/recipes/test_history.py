# SPDX-License-Identifier: Apache-2.0
"""The history of a run, and the pictures of it."""

from lightning_sagemaker.recipes._common.outputs.pictures import curve_panels


def test_no_panel_of_the_curves_has_two_scales():
    series = {"loss": [(1, 5.0)], "accuracy": [(1, 0.5)], "val_loss": [(2, 4.0)], "learning_rate": [(1, 1e-3)]}
    percent = {"val_f1": [(2, 0.0), (4, 80.5)], "val_exact": [(4, 70.0)], "val_total": [(4, 600.0)]}
    assert curve_panels(series | percent) == [
        ("loss", ["loss", "val_loss"]),
        ("score", ["accuracy"]),
        ("score in percent", ["val_f1", "val_exact"]),
        ("learning rate", ["learning_rate"]),
    ]

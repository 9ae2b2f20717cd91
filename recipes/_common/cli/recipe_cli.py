# SPDX-License-Identifier: Apache-2.0
"""The command line of all recipes: LightningCLI with SageMaker's arguments and defaults."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from transformers.utils import logging as transformers_logging

from lightning_sagemaker import AutoResume, SageMakerJob, SpotInterruption, select_strategy
from lightning_sagemaker.callbacks import DataWait, Throughput
from lightning_sagemaker.loggers.address import keep_password
from lightning_sagemaker.rank import is_rank_zero
from lightning_sagemaker.recipes._common.cli import gradients
from lightning_sagemaker.recipes._common.cli.arguments import explained, normalize
from lightning_sagemaker.recipes._common.cli.checkpoints import check_checkpoint, model_options
from lightning_sagemaker.recipes._common.cli.config_files import check_configs
from lightning_sagemaker.recipes._common.cli.console import show_information
from lightning_sagemaker.recipes._common.cli.hosts import check_num_nodes
from lightning_sagemaker.recipes._common.cli.precision import automatic_precision
from lightning_sagemaker.recipes._common.cli.recipe import Recipe
from lightning_sagemaker.recipes._common.cli.saved_config import SavedConfig
from lightning_sagemaker.recipes._common.cli.scaling import TotalExamples
from lightning_sagemaker.recipes._common.cli.values import check_values
from lightning_sagemaker.recipes._common.modules.measured_workers import MeasuredWorkers
from lightning_sagemaker.recipes._common.modules.speed import tune_allocator
from lightning_sagemaker.recipes._common.outputs.artifacts import LAST_CHECKPOINT, RunArtifacts
from lightning_sagemaker.recipes._common.outputs.best import BestModel
from lightning_sagemaker.recipes._common.outputs.folders import RunFolders
from lightning_sagemaker.recipes._common.outputs.run_loggers import TRACKERS, loggers, trackers
from lightning_sagemaker.recipes._common.outputs.summary import first_lines

_log = logging.getLogger(__name__)


class RecipeCLI(LightningCLI):
    """Parses a command line and runs one stage of a recipe.

    Accepts LightningCLI's arguments, and those that SageMaker makes of hyperparameters (see
    :func:`~lightning_sagemaker.recipes._common.cli.arguments.normalize`). Defaults come from the job: strategy,
    folders, loggers (TensorBoard if installed, and CSV), a progress bar on a terminal and a line per logged step
    elsewhere.

    Args:
        recipe: Recipe to run.
        arguments: Command line without the program's name; ``sys.argv[1:]`` by default.
        run: Whether to run the stage; ``False`` only parses and instantiates.

    """

    def __init__(self, recipe: Recipe, arguments: Sequence[str] | None = None, run: bool = True) -> None:
        self.recipe = recipe
        self.job = SageMakerJob.from_environment()
        self._run = run
        show_information()
        tune_allocator()
        given = sys.argv[1:] if arguments is None else arguments
        args = normalize(given, recipe.names, recipe.folder)
        check_configs(args)
        self._wanted = args[0]
        self._folders: RunFolders | None = None
        self._options: LightningArgumentParser | None = None
        self._model_options: dict[str, Any] = {}
        try:
            super().__init__(
                recipe.model_class,
                recipe.data_class,
                save_config_callback=None,
                trainer_defaults={"strategy": "sagemaker"},
                seed_everything_default=0,  # not True: each host would choose its own
                auto_configure_optimizers=False,
                parser_kwargs={
                    "exit_on_error": False,
                    self._wanted: {"exit_on_error": False},
                },  # one sentence, no usage
                args=args,
            )
        except BaseException:
            if self._folders is not None and is_rank_zero():
                self._folders.discard_unused()
            raise

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # of one command line, not of the class
        """The requested subcommand, or all for help: building the parser of each one reads every signature."""
        stages = super().subcommands()
        return {self._wanted: stages[self._wanted]} if self._wanted in stages else stages

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, without Lightning's warning about an unused ``sys.argv``; remove the password from ``mlflow``."""
        known = self._options.get_defaults().keys() if self._options else ()
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            raise explained(error, known) from None
        stage = self.config.get(str(self.config.get("subcommand")), {})
        check_values(stage)
        if stage.get("ckpt_path"):  # Lightning reads the settings of its model, which replace the configuration's
            check_checkpoint(stage["ckpt_path"], self.recipe.name, known)
            self._model_options = model_options(args, stage)
        if stage.get("mlflow") is not None:  # the configuration is kept in a file
            stage["mlflow"] = keep_password(stage["mlflow"])

    def before_instantiate_classes(self) -> None:
        """Set the command line's options of the model again, after Lightning has read the checkpoint's."""
        for name, value in self._model_options.items():
            self.config[self.subcommand][name] = value

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options in :data:`~lightning_sagemaker.recipes._common.cli.options.OWN_OPTIONS`."""
        self._options = parser
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="Folder of the run. Default: the job's own folders; outside a job a new one for each run, named by the"
            f" time, in runs/{self.recipe.name}, where `latest` links to the last training run.",
        )
        parser.add_argument(
            "--baseline",
            type=str | None,
            default=None,
            help="throughput.json of a single-process run, for the scaling efficiency. Default: that in the same --run_dir.",
        )
        parser.add_argument(
            "--precision",
            type=str,
            default="auto",
            help="Precision if trainer.precision is not set; auto: bf16-mixed on hardware with native bfloat16.",
        )
        parser.add_argument(
            "--total_examples",
            type=int | None,
            default=None,
            help="Number of samples to train on; the number of steps follows from the global batch size.",
        )
        parser.add_argument("--checkpoint_every", type=int, default=1000, help="Optimizer steps between checkpoints.")
        parser.add_argument("--checkpoint_minutes", type=float, default=10.0, help="Minutes between checkpoints.")
        parser.add_argument(
            "--resume",
            type=Literal["auto", "always", "never"],
            default="auto",
            help="Resume from the newest complete checkpoint of the run (without run_dir: of the latest training);"
            " auto: in a training job.",
        )
        parser.add_argument(
            "--mlflow",
            type=str | None,
            default=None,
            help="Log to MLflow too: a folder, http://HOST:PORT, or the ARN of SageMaker's managed tracking server.",
        )
        parser.add_argument(
            "--wandb", type=str | None, default=None, help="Write an offline Weights & Biases run for this project."
        )
        parser.add_argument(
            "--monitor",
            type=str | None,
            default="auto",
            help="Validation metric whose best checkpoint is kept, exported and tested, with or without val_; auto: the"
            " recipe's (see its README); null: the last step is exported.",
        )
        parser.add_argument(
            "--monitor_mode",
            type=Literal["auto", "min", "max"],
            default="auto",
            help="Whether a lower or a higher value of the metric is better; auto: by its name.",
        )
        parser.add_argument(
            "--patience",
            type=int | None,
            default=None,
            help="Stop training after this many validations without an improvement. Default: never.",
        )
        gradients.add_options(parser)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Lightning's trainer, with the job's defaults for arguments that were not set."""
        config: dict[str, Any] = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        stage = str(self.subcommand)
        check_num_nodes(self.job, config.get("num_nodes") or 1)
        resume = stage == "fit" and self._option("resume") == "always"
        folders = RunFolders.of(self.job, self.recipe.name, self._option("run_dir"), stage, resume)
        self._folders = folders
        if config.get("precision") is None:
            config["precision"] = self._precision()
        if config.get("default_root_dir") is None:
            config["default_root_dir"] = str(folders.output)
        on_terminal = sys.stdout.isatty()
        if not on_terminal:
            transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        if config.get("enable_progress_bar") is None:
            config["enable_progress_bar"] = on_terminal
        if config.get("logger") in (None, True):
            config["logger"] = loggers(folders, stage, lines=not on_terminal)
        if stage == "fit" and (places := {name: self._option(name) for name in TRACKERS if self._option(name)}):
            tracked = trackers(places, self.recipe.name, folders, self.job, self._goes_on)
            config["logger"] = [*_as_list(config["logger"] or None), *tracked]
        config["callbacks"] = [*_as_list(config.get("callbacks")), *self._callbacks(folders, config)]
        config["strategy"] = gradients.with_options(config["strategy"], self._option)
        try:
            return self._instantiate_trainer(config, [])
        except (MisconfigurationException, TypeError, ValueError) as error:
            if "HINT:" in str(error):
                raise
            raise MisconfigurationException(f"{error} HINT: see --help; --debug shows the traceback.") from error

    def after_fit(self) -> None:
        """Test the exported model, if there is data to test it with."""
        if self.datamodule.can_test() and self.trainer.limit_test_batches and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)
        self._artifacts.say_trained(self.trainer)

    def _run_subcommand(self, subcommand: str) -> None:
        if self._run:
            if is_rank_zero():  # of processes that Lightning starts, too
                self._say_first(subcommand)
            self.model.check_strategy(self.trainer.strategy)
            super()._run_subcommand(subcommand)

    def _say_first(self, stage: str) -> None:
        """Log the run's inputs and output folder; warn if an earlier run's model will be overwritten."""
        assert self._folders is not None
        uses = {"config": ", ".join(map(str, self._option("config") or []))}
        uses |= self.datamodule.sources()
        uses["model"] = self._option("model.pretrained") or f"from scratch ({self._option('model.size')})"
        if self._option("ckpt_path"):
            uses["checkpoint"] = str(self._option("ckpt_path"))
        uses["output"] = str(self._folders.output)
        for line in first_lines(self.recipe.name, stage, uses):
            _log.info("%s", line)
        if stage == "fit" and not self._goes_on and (self._folders.model / "config.json").is_file():
            _log.warning(
                "%s contains a trained model, which this run overwrites. HINT: --resume always resumes that run; without"
                " --run_dir each run has a folder of its own.",
                self._folders.model,
            )

    @property
    def _goes_on(self) -> bool:
        resume = self._option("resume")
        return bool(resume == "always" or (resume == "auto" and self.job.in_container))

    def _callbacks(self, folders: RunFolders, config: dict[str, Any]) -> list[Callback]:
        baseline = self._option("baseline")
        throughput = Throughput(
            record=folders.output / "throughput.json", baseline=None if baseline is None else Path(baseline)
        )
        data_wait = DataWait()
        keep = config.get("enable_checkpointing") is not False
        save_config = SavedConfig(
            self._parser(self.subcommand),
            self.config.get(str(self.subcommand), self.config),
            overwrite=True,  # a restarted job finds the file of its first start
            save_to_log_dir=False,
        )
        save_config.folder = folders.output
        best = BestModel(
            folders.checkpoints, self._option("monitor"), self._option("monitor_mode"), self._option("patience"), keep
        )
        self._artifacts = RunArtifacts(
            self.recipe.name,
            self.recipe.names.short,
            folders,
            throughput=throughput,
            data_wait=data_wait,
            best=best,
            save_checkpoint=keep,
            facts=self._choice(config),
            says_resume=not self.job.in_container,
        )
        total = self._option("total_examples")
        ends = [] if total is None else [TotalExamples(total)]
        speed = [throughput, data_wait, MeasuredWorkers(data_wait)]
        callbacks: list[Callback] = [*ends, *speed, best, self._artifacts, save_config]
        if keep:
            own = any(isinstance(callback, Checkpoint) for callback in _as_list(config.get("callbacks")))
            callbacks += [
                AutoResume(folders.checkpoints, search=self._goes_on),
                SpotInterruption(
                    # None: ModelCheckpoint's folder, which Lightning broadcasts from rank zero.
                    folders.checkpoints if own else None,
                    save_every=timedelta(minutes=self._option("checkpoint_minutes")),
                ),
            ]
            if not own:
                callbacks.append(
                    ModelCheckpoint(
                        dirpath=folders.checkpoints,
                        filename=Path(LAST_CHECKPOINT).stem,
                        every_n_train_steps=self._option("checkpoint_every"),
                        enable_version_counter=False,
                    )
                )
        return callbacks

    def _choice(self, config: dict[str, Any]) -> dict[str, str]:
        """The reason for the strategy, and its backend if the strategy was chosen automatically."""
        if config["strategy"] != "sagemaker":
            return {"strategy_reason": "as set"}
        selection = select_strategy(self.job)
        return {"backend": selection.backend, "strategy_reason": selection.reason}

    def _precision(self) -> str:
        asked: str = self._option("precision")
        if asked != "auto":
            return asked
        precision, reason = automatic_precision()
        if not self.job.global_rank:
            _log.info("precision %s: %s", precision, reason)
        return precision

    def _option(self, name: str) -> Any:
        return self._get(self.config, name)


def _as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return given if isinstance(given, list) else [given]

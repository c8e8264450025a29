"""Fine-tuning: low-rank terms, data, and the runs that gomlx.train makes.

    run = gomlx.train(model, "data.jsonl", lora=gomlx.lora.LoRAConfig(targets="all"), run="run")
    for step in run:
        print(step.step, step.loss)
"""
from gomlx._base import arguments
from gomlx._training.config import LoRAConfig
from gomlx._training.data import Cut, Dataset, Row, Tokens, load_data
from gomlx._training.distillation import save_teacher
from gomlx._training.losses import distillation_loss, dpo_loss, kto_loss, orpo_loss
from gomlx._training.plan import TrainingPlan, plan_training
from gomlx._training.settings import Evaluation, Step
from gomlx._training.steps import TrainingRun

__all__ = ["Cut", "Dataset", "Evaluation", "LoRAConfig", "Row", "Step", "Tokens", "TrainingPlan", "TrainingRun",
           "distillation_loss", "dpo_loss", "kto_loss", "load_data", "orpo_loss", "plan_training",
           "save_teacher"]

arguments.name_public(globals(), __all__)
arguments.show_as_own(__name__, [globals()[name] for name in __all__])

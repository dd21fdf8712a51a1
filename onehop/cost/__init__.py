"""Floor 2: what a model costs, as arithmetic on its config. No torch."""

from onehop.cost.planned import Asked, Plan, plan

__all__ = ["Asked", "Plan", "plan"]

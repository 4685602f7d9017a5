"""The loss of the completion tokens, without a logit where there is no label.

A vocabulary of 262,144 makes the output layer the dearest part of a small model. Most positions
belong to prompts or padding and have no label, so the decoder runs over all of them and the output
layer only over the rest. Loss and gradient of a block of rows are computed together and its logits
dropped, so memory does not grow with the number of labels.

With h_i the final state before label y_i, W the output matrix and N the number of labels of the
update:  L = - (1/N) sum_i log softmax(W h_i)[y_i].
"""

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IGNORE = -100
BLOCK_BYTES = 2**28


class _BlockedCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of ``states @ weight.T`` against ``labels``, a block of rows at a time."""

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, softcap: float | None, rows: int
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        need_states, need_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        grad_states = torch.empty_like(states) if need_states else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        for start in range(0, len(labels), rows):
            block, target = states[start : start + rows], labels[start : start + rows, None]
            logits = (block @ weight.T).float()
            if softcap is not None:
                logits = torch.tanh(logits / softcap) * softcap
            slope = 1 - (logits / softcap) ** 2 if softcap is not None else None
            normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
            total += (normalizer - logits.gather(1, target)).sum()
            # d loss / d logits = softmax - one-hot
            logits.sub_(normalizer).exp_().scatter_add_(1, target, torch.full_like(normalizer, -1.0))
            if slope is not None:
                logits *= slope
            grad = logits.to(weight.dtype)
            if grad_states is not None:
                torch.mm(grad, weight, out=grad_states[start : start + rows])
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, block)
        ctx.save_for_backward(grad_states, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_states, grad_weight = ctx.saved_tensors
        scale = grads[0]
        return (
            None if grad_states is None else grad_states * scale.to(grad_states.dtype),
            None if grad_weight is None else grad_weight.mul_(scale.to(grad_weight.dtype)),
            None,
            None,
            None,
        )


def completion_loss(
    states: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, softcap: float | None = None
) -> torch.Tensor:
    """Return the cross-entropy of the next tokens, summed over those that have a label.

    Parameters
    ----------
    states
        Final states (batch, length, d), after the final norm.
    labels
        Token ids (batch, length), -100 where nothing is trained; not shifted.
    weight
        Output matrix (vocabulary, d).
    softcap
        The model's soft cap of the logits, if it has one.

    Returns
    -------
    torch.Tensor
        A scalar in fp32; 0 (with a gradient of 0) if there is no label.
    """
    target = labels[:, 1:]
    mask = target != IGNORE
    kind = states.device.type
    if torch.is_autocast_enabled(kind):
        weight = weight.to(torch.get_autocast_dtype(kind))
    rows = max(1, BLOCK_BYTES // (4 * weight.shape[0]))
    with torch.autocast(kind, enabled=False):
        chosen = states[:, :-1][mask].to(weight.dtype)
        loss: torch.Tensor = _BlockedCrossEntropy.apply(chosen, weight, target[mask], softcap, rows)  # type: ignore[no-untyped-call]
    return loss


def add_completion_loss(model: "PreTrainedModel") -> None:
    """Let `model` answer ``completion_only=True`` with the summed loss in place of logits.

    The loss is computed inside the model's own forward, and there inside the output layer's own
    call, so that whatever wraps the model (an adapter, a wrapper that shards its weights) sees the
    calls that it has hooks on. Any other call is unchanged.
    """
    original, head = model.forward, model.get_output_embeddings()
    project = head.forward
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, completion_only: bool = False, **kwargs: Any) -> Any:
        if not completion_only:
            return original(*args, **kwargs)
        labels = kwargs.pop("labels")
        states = self.base_model(*args, **kwargs).last_hidden_state
        return {"loss": self.get_output_embeddings()(states, completion_labels=labels)}

    @functools.wraps(type(head).forward)
    def head_forward(self: Any, states: torch.Tensor, completion_labels: torch.Tensor | None = None) -> torch.Tensor:
        if completion_labels is None:
            logits: torch.Tensor = project(states)
            return logits
        return completion_loss(states, completion_labels, self.weight, softcap)

    model.forward = types.MethodType(forward, model)
    head.forward = types.MethodType(head_forward, head)

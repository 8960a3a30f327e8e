"""Looking inside: `attention` shows where the class token looks."""

from .attention import attention_sheet, class_attention, saliency

__all__ = ["attention_sheet", "class_attention", "saliency"]

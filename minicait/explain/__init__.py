"""Look inside a model.

attention    maps of where a model looks, drawn on images
inside       everything that one forward pass of one image shows, as numbers; `maps` groups what is drawn alike
facts        whether the prediction is correct, and other things that a report says if they are known
report       the same as an HTML page: page/ has its texts, style and scripts, `sections` those that fit the model, and
             `packing` compresses what patches take from each other; `templates`: pages that need no other file
pictures     the same as pictures; `charts` draws a value per layer, `colours` has the colour maps
block_graph  the graph that autograd records for one block
neighbours   images beside the most similar ones
write        reports on disk
"""

from .attention import attention_sheet, class_attention, saliency
from .block_graph import block_graph
from .facts import Facts, find_class
from .inside import Inside, look
from .report import report
from .write import numbered, write_report, write_reports

__all__ = [
    "Facts", "Inside", "attention_sheet", "block_graph", "class_attention", "find_class", "look", "numbered", "report",
    "saliency", "write_report", "write_reports",
]  # fmt: skip

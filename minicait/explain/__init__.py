"""Looking inside.

attention    where the class token looks, drawn on images
inside       all that one forward pass of one image shows, as numbers
report       that as one HTML page; its text, style and scripts are in page/, the attention in it is packed by `packing`
pictures     that as pictures; `charts` are those of a value per layer, `colours` those of all maps
block_graph  the graph that autograd records for one block
write        reports on disk
"""

from .attention import attention_sheet, class_attention, has_class_attention, saliency
from .block_graph import block_graph
from .inside import Inside, look
from .report import report
from .write import numbered, write_report, write_reports

__all__ = [
    "Inside",
    "attention_sheet",
    "block_graph",
    "class_attention",
    "has_class_attention",
    "look",
    "numbered",
    "report",
    "saliency",
    "write_report",
    "write_reports",
]

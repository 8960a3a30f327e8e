// Renders what offline_math.py left as source. A formula with a mistake is an error, and shows as one.
for (const element of document.querySelectorAll(".math[data-display]"))
  katex.render(element.textContent, element, { displayMode: element.dataset.display === "true", throwOnError: true });

// Options such as --lr stay in one piece.
for (const word of document.querySelectorAll("code .pre"))
  if (word.textContent.startsWith("-")) word.style.whiteSpace = "nowrap";
// In tables, long names may go on in the next line: after a dot, a slash, a colon or an underscore.
for (const name of document.querySelectorAll("td code .pre"))
  name.innerHTML = name.innerHTML.replace(/[._/:]+/g, "$&<wbr>");

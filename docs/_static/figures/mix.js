// Two attention maps, mixed by a 2 x 2 matrix: their scores before the softmax, or the maps after it.
live("mix", (figure) => {
  const scores = JSON.parse(figure.dataset.scores); // head, query, key
  const weights = [...figure.querySelectorAll("input[type=number]")], tables = [...figure.querySelectorAll("table")];

  function softmax(row) {
    const powers = row.map(Math.exp), sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  }
  const mixed = ([one, two], [a, b]) => one.map((row, i) => row.map((value, j) => a * value + b * two[i][j]));

  const number = (value) => value.toFixed(2).replace(/^-(?=0.00$)/, "").replace("-", "−");

  function fill(cell, value) {
    cell.textContent = number(value).replace("0.", "."); // cells are narrow
    cell.className = cell.textContent.startsWith("−") ? "minus" : "";
    cell.style.setProperty("--v", Math.min(Math.abs(value), 1).toFixed(3));
  }

  function draw() {
    const [a, b, c, d] = weights.map((input) => input.valueAsNumber || 0), matrix = [[a, b], [c, d]];
    const before = figure.querySelector("[name=mix-where]:checked").value === "before";
    const maps = scores.map((map) => map.map(softmax));
    const heads = matrix.map((row) => (before ? mixed(scores, row).map(softmax) : mixed(maps, row)));
    [...maps, ...heads].forEach((map, head) =>
      map.forEach((row, i) => {
        const cells = tables[head].tBodies[0].rows[i].cells;
        [...row, row.reduce((x, y) => x + y)].forEach((value, j) => fill(cells[j + 1], value));
      }));
    const [one, two, least] = [a + b, c + d, Math.min(...heads.flat(2))].map(number);
    figure.querySelector(".status").textContent = before
      ? "The softmax comes after mixing: no weight is negative, and every row sums to 1."
      : `Rows of head 1′ sum to ${one}, those of head 2′ to ${two}; the smallest weight is ${least}.`;
  }

  figure.addEventListener("input", draw);
  for (const button of figure.querySelectorAll("button"))
    button.addEventListener("click", () => {
      button.dataset.matrix.split(" ").forEach((value, i) => (weights[i].value = value));
      draw();
    });
  draw();
});
